#pragma once
#include <vector>

#include "launch/host_connection.h"

namespace zeroshard {

// Starts `zeroshard run` on every host and stays until the job has ended on all: see Note [Started from another host].
// Returns one exit code, as launch() does. `grace_period_s` is how long the ranks have to end after a signal.
int launch_on_hosts(const std::vector<HostStart>& hosts, double grace_period_s);

}  // namespace zeroshard

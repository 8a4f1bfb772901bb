#pragma once
#include <vector>

#include "launch/host_connection.h"

namespace zeroshard {

// Starts `zeroshard run` on every host, and returns when the job has ended on all of them; see Note [Started from
// another host]. Returns one exit code, like launch(). The ranks have `grace_period_s` to end after a signal.
int launch_on_hosts(const std::vector<HostStart>& hosts, double grace_period_s);

}  // namespace zeroshard

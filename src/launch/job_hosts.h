#pragma once
#include <string>
#include <vector>

#include "launch/host_connection.h"
#include "launch/taken_signals.h"

namespace zeroshard {

// Says how a job on several hosts has ended.
struct JobEnd {
  int code = 0;                  // an exit code like that of launch()
  bool has_failed = false;       // false: all ranks ended with 0, or a signal asked this process to end the job
  bool could_not_start = false;  // whether the first failure is that zeroshard did not begin to run on a host
  std::vector<size_t> lost;      // after a failure: hosts without an exit code (unreachable, cut off or dead)
  bool can_still_run = false;    // whether a lost host may still run ranks, which zeroshard there ends by itself
  double after_s = 0;            // seconds from the start to the first failure
};

// Starts `zeroshard run` on every host, and returns when the connections to all of them have ended; see Note [Started
// from another host]. After a signal the ranks have `grace_period_s` to end. The caller keeps `signals` for all starts
// of a job, so that a signal between two starts ends the next start.
JobEnd launch_on_hosts(const std::vector<HostStart>& hosts, double grace_period_s, const TakenSignals& signals);

}  // namespace zeroshard

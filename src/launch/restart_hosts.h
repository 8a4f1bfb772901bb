#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/job_hosts.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// One start of a job on several hosts.
struct HostsAttempt {
  int restarts = 0;                // restarts before this start
  std::vector<std::string> hosts;  // names of the hosts, each with `ranks` ranks
  int ranks = 1;
  std::optional<JobEnd> last;  // the end of the previous start, if that start had the same hosts
};

struct HostsRestart {
  bool begins = false;
  std::vector<size_t> dropped;  // indices of hosts that take no part in the next start, in ascending order
  std::string text;             // one line for the user; empty if there is nothing to say
};

// Decides whether a job on several hosts is restarted, and on which hosts, by --max-restarts and --min-ranks. With
// --min-ranks, lost hosts are dropped if the others have enough ranks. If no host is lost, the last host is dropped in
// the same way when the job fails twice in a row, or when a start on fewer hosts fails at once. A job of one host is
// left to the launcher on that host; see decide_restart() in restart.h.
HostsRestart decide_restart(const LaunchOptions& options, const HostsAttempt& attempt, const JobEnd& end);

}  // namespace zeroshard

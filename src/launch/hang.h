#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/heartbeat_board.h"
#include "launch/rank_process.h"

namespace zeroshard {

// One rank of this host, with its last report.
struct WatchedRank {
  RankProcess process;
  HeartbeatState heart;
  // The process that trains: the rank itself, or a process that the rank started if the rank is a shell.
  pid_t worker() const { return heart.owner > 0 ? heart.owner : process.pid; }
};

struct HangLimits {
  double timeout_s = 0;
  int64_t since_ns = 0;  // earlier silence does not count: the job was suspended
  int64_t now_ns = 0;
};

// If the job hangs, the index of the rank that the others most likely wait for. It hangs when no rank that has reported
// a step makes progress for the time-out, or when one makes none and waits for nobody while another has waited that
// long. Ranks that have ended or never reported a step cannot make a job hang, but the others may wait for them.
std::optional<size_t> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits);

// The indices of a rank that ended with 0 and of a rank that has waited for all `world_size` ranks of the job for
// `limits.timeout_s` since then. A rank that waits for fewer waits for ranks of its script's choice, which may not
// include the ended one. `elapsed_s`: now, on the clock of ProcessExit::at_s.
std::optional<std::pair<size_t, size_t>> find_absence(const std::vector<WatchedRank>& ranks, const HangLimits& limits,
                                                      double elapsed_s, int world_size);

// "step 41, 31.2 s ago; waits in all_gather 'layer.3' for 31.1 s"
std::string describe_heart(const HeartbeatState& heart, int64_t now_ns);

// The state of all ranks, including the kernel's view: several lines.
std::string hang_report(const std::vector<WatchedRank>& ranks, size_t suspect, const HangLimits& limits);

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/heartbeat_board.h"
#include "launch/rank_process.h"

namespace zeroshard {

// One rank of this host, with what it last said.
struct WatchedRank {
  RankProcess process;
  HeartbeatState heart;
  // Who runs the training: the rank itself, or a process that it started when the rank is a shell.
  pid_t worker() const { return heart.owner > 0 ? heart.owner : process.pid; }
};

struct HangLimits {
  double timeout_s = 0;
  int64_t since_ns = 0;  // silence before does not count: the job was suspended
  int64_t now_ns = 0;
};

// The index of the rank that the others most likely wait for, when the job hangs: when no rank that has reported a step
// makes progress for so long, or when one makes none and waits for nobody while another has waited for so long.
// Ranks that have ended or have never reported a step make no job hang, but may be what the others wait for.
std::optional<size_t> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits);

// The indices of a rank that has ended with 0 and of one that has been waiting, for `limits.timeout_s` since, for all
// `world_size` ranks of the job to come. One that waits for fewer waits for ranks of its script's choice, which may be
// others than those that ended. `elapsed_s`: now, on the clock of ProcessExit::at_s.
std::optional<std::pair<size_t, size_t>> find_absence(const std::vector<WatchedRank>& ranks, const HangLimits& limits,
                                                      double elapsed_s, int world_size);

// "step 41, 31.2 s ago; waits in all_gather 'layer.3' for 31.1 s"
std::string describe_heart(const HeartbeatState& heart, int64_t now_ns);

// What all ranks do, the kernel's view included: several lines.
std::string hang_report(const std::vector<WatchedRank>& ranks, size_t suspect, const HangLimits& limits);

}  // namespace zeroshard

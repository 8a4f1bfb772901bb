#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/heartbeat_board.h"
#include "launch/rank_process.h"

namespace zeroshard {

// One rank of this host, and the last report that it made.
struct WatchedRank {
  RankProcess process;
  HeartbeatState heart;
  // Returns the process that trains. It is the rank itself or, if the rank is a shell, a process that the rank has
  // started.
  pid_t worker() const { return heart.owner > 0 ? heart.owner : process.pid; }
};

struct HangLimits {
  double timeout_s = 0;
  int64_t since_ns = 0;  // silence before this time does not count, because the job was suspended
  int64_t now_ns = 0;
};

// If the job hangs, returns the index of the rank for which the others most likely wait. A job hangs if none of the
// ranks that have reported a step has made progress for the time-out. It also hangs if, for the time-out, one rank has
// made no progress and waits for nobody, while another rank has waited. A rank that has ended or never reported a step
// does not count as hanging, but other ranks might wait for it.
std::optional<size_t> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits);

// Returns the index of a rank that ended with 0 at least `limits.timeout_s` ago, and the index of a rank that has
// waited as long for all `world_size` ranks of the job to arrive. Returns nothing if one of the two does not exist. A
// rank that waits for fewer ranks does not count, because its script might have left out the ended rank on purpose.
// `elapsed_s` is the present time on the clock of ProcessExit::at_s.
std::optional<std::pair<size_t, size_t>> find_absence(const std::vector<WatchedRank>& ranks, const HangLimits& limits,
                                                      double elapsed_s, int world_size);

// Returns for example "step 41, last progress 31.2 s ago; waits in all_gather 'layer.3' for 31.1 s".
std::string describe_heart(const HeartbeatState& heart, int64_t now_ns);

// Returns several lines that describe the state of all ranks, including what the kernel says about each.
std::string hang_report(const std::vector<WatchedRank>& ranks, size_t suspect, const HangLimits& limits);

}  // namespace zeroshard

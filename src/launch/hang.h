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
  // Returns the process that reports for the rank. It is the rank itself or, for example if the rank is a shell, a
  // process that the rank has started. Returns the rank itself if no process reports.
  pid_t worker() const { return heart.owner > 0 ? heart.owner : process.pid; }
};

struct HangLimits {
  double timeout_s = 0;
  int64_t since_ns = 0;  // when the job started or was last resumed; earlier silence does not count
  int64_t now_ns = 0;
};

// If the job hangs, returns the index of the living rank for which the others most likely wait. Otherwise returns
// nothing. A training rank is one that lives, has reported a step and has not finished. The job hangs in two cases:
// - There are training ranks, and none of them has made progress for the time-out.
// - Some training rank that waits for nobody has made no progress for the time-out, and some living rank has waited for
//   others for as long.
//
// A living rank that does not train may make no progress for any time. But others might wait for such a rank, so the
// function can return it.
std::optional<size_t> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits);

// Returns the index of a rank that ended with 0 at least `limits.timeout_s` ago, and the index of a living rank that
// has waited at least as long for all `world_size` ranks of the job to arrive. Returns nothing if one of the two does
// not exist. A rank that waits for fewer ranks does not count, because its script might have left out the ended rank on
// purpose. `elapsed_s` is the present time on the clock of ProcessExit::at_s.
std::optional<std::pair<size_t, size_t>> find_absence(const std::vector<WatchedRank>& ranks, const HangLimits& limits,
                                                      double elapsed_s, int world_size);

// Returns for example "step 41, last progress 31.2 s ago; waits in all_gather 'layer.3' for 31.1 s".
std::string describe_heart(const HeartbeatState& heart, int64_t now_ns);

// Returns a line that names the suspect, and a line for each rank. The line of a living rank has its last report, and
// what the kernel says about its worker(). The line of an ended rank has its exit code.
std::string hang_report(const std::vector<WatchedRank>& ranks, size_t suspect, const HangLimits& limits);

}  // namespace zeroshard

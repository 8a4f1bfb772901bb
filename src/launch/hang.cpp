#include "launch/hang.h"

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>
#include <tuple>

#include "launch/process_state.h"

namespace zeroshard {
namespace {

using RankActivity = HeartbeatState::Activity;

double seconds(int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

double silence_s(const WatchedRank& rank, const HangLimits& limits) {
  return seconds(limits.now_ns - std::max(rank.heart.progress_ns, limits.since_ns));
}

bool waits(const WatchedRank& rank) {
  return rank.heart.waiting_since_ns != 0;
}

bool has_waited(const WatchedRank& rank, const HangLimits& limits) {
  return waits(rank) &&
         seconds(limits.now_ns - std::max(rank.heart.waiting_since_ns, limits.since_ns)) >= limits.timeout_s;
}

// Returns a key that orders ranks, the most suspicious first. A rank that waits for others has got further than one
// that does not wait, so the waiting rank is less suspicious. Among equals, the rank with the lower step comes first,
// and then the rank whose progress is longer ago.
auto order(const WatchedRank& rank) {
  const int64_t step = rank.heart.activity == RankActivity::kNone ? -1 : rank.heart.step;
  return std::tuple(waits(rank), step, rank.heart.progress_ns);
}

}  // namespace

std::optional<size_t> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits) {
  size_t beating = 0, silent = 0;
  bool silent_alone = false, waited_for = false;
  std::optional<size_t> suspect;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const WatchedRank& rank = ranks[i];
    if (rank.process.exit) continue;
    if (!suspect || order(rank) < order(ranks[*suspect])) suspect = i;
    waited_for = waited_for || has_waited(rank, limits);
    if (rank.heart.activity != RankActivity::kBeating) continue;
    ++beating;
    if (silence_s(rank, limits) < limits.timeout_s) continue;
    ++silent;
    silent_alone = silent_alone || !waits(rank);
  }
  const bool hangs = beating > 0 && (silent == beating || (silent_alone && waited_for));
  return hangs ? suspect : std::nullopt;
}

std::optional<std::pair<size_t, size_t>> find_absence(const std::vector<WatchedRank>& ranks, const HangLimits& limits,
                                                      double elapsed_s, int world_size) {
  std::optional<size_t> absent, waiting;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto& [process, heart] = ranks[i];
    if (process.exit) {
      if (!process.exit->failed() && elapsed_s - process.exit->at_s >= limits.timeout_s && !absent) absent = i;
    } else if (heart.meeting_since_ns != 0 && heart.meeting_size == world_size && !waiting) {
      const double since_s = seconds(limits.now_ns - std::max(heart.meeting_since_ns, limits.since_ns));
      if (since_s >= limits.timeout_s) waiting = i;
    }
  }
  if (!absent || !waiting) return std::nullopt;
  return std::pair(*absent, *waiting);
}

std::string describe_heart(const HeartbeatState& heart, int64_t now_ns) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  if (heart.activity == RankActivity::kNone) {
    out << (heart.owner == 0 ? "has not connected" : "no step yet");
  } else {
    out << "step " << heart.step << ", last progress " << seconds(now_ns - heart.progress_ns) << " s ago";
  }
  if (heart.activity == RankActivity::kFinished) out << ", has left its engine";
  if (heart.waiting_since_ns != 0) {
    out << "; waits in " << heart.where << " for " << seconds(now_ns - heart.waiting_since_ns) << " s";
  } else if (heart.activity == RankActivity::kBeating) {
    out << "; waits for no rank";
  }
  return out.str();
}

std::string hang_report(const std::vector<WatchedRank>& ranks, size_t suspect, const HangLimits& limits) {
  std::ostringstream out;
  out << "the job hangs: no progress for " << limits.timeout_s << " s (--hang-timeout); most likely because of rank "
      << ranks[suspect].process.rank;
  for (const WatchedRank& rank : ranks) {
    out << "\n  rank " << rank.process.rank << " (pid " << rank.process.pid << "): ";
    if (rank.process.exit) {
      out << "has ended with exit code " << rank.process.exit->shell_code();
    } else {
      out << describe_heart(rank.heart, limits.now_ns) << "; " << kernel_state(rank.worker());
    }
  }
  return out.str();
}

}  // namespace zeroshard

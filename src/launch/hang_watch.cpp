#include "launch/hang_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/format.h"
#include "launch/descendants.h"
#include "launch/heartbeat_layout.h"
#include "launch/process_state.h"
#include "launch/report.h"
#include "launch/stack_dump.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// The time after which a rank that has ended counts as absent. This time is needed because a rank that has met the
// others can end at once, before the others notice that all have arrived.
constexpr double kAbsenceS = 8;

}  // namespace

HangWatch::HangWatch(const LaunchOptions& options)
    : timeout_s_(options.hang_timeout_s),
      first_rank_(options.node_rank * options.nproc),
      world_size_(options.nnodes * options.nproc),
      since_ns_(heartbeat::now_ns()),
      last_check_ns_(since_ns_) {
  try {
    board_.emplace(options.nproc);
  } catch (const Error&) {
    if (timeout_s_ > 0) throw;
  }
}

std::optional<int64_t> HangWatch::last_step(int rank) const {
  if (!board_) return {};
  const HeartbeatState heart = board_->read(rank - first_rank_);
  if (heart.activity == HeartbeatState::Activity::kNone) return {};
  return heart.step;
}

void HangWatch::forgive() {
  since_ns_ = heartbeat::now_ns();
}

std::vector<WatchedRank> HangWatch::look(const std::vector<RankProcess>& ranks) const {
  std::vector<WatchedRank> result;
  const std::vector<pid_t> ours = descendants(::getpid());
  for (const RankProcess& rank : ranks) {
    result.push_back({rank, board_->read(rank.rank - first_rank_)});
    // Replaces an owner that is no process below this one by the process of the rank, because a rank can write any
    // number, or a pid of another namespace.
    pid_t& owner = result.back().heart.owner;
    if (owner != 0 && std::find(ours.begin(), ours.end(), owner) == ours.end()) owner = rank.pid;
  }
  return result;
}

std::optional<HangWatch::Finding> HangWatch::check(const std::vector<RankProcess>& ranks) {
  const int64_t now = heartbeat::now_ns();
  const double every_s = std::min(1.0, timeout_s_ / 8);
  if (timeout_s_ <= 0 || static_cast<double>(now - last_check_ns_) < every_s * 1e9) return {};
  last_check_ns_ = now;
  const std::vector<WatchedRank> watched = look(ranks);
  const HangLimits limits{timeout_s_, since_ns_, heartbeat::now_ns()};
  const auto suspect = find_hang(watched, limits);
  if (!suspect) return {};
  return Finding{watched[*suspect].process.rank, hang_report(watched, *suspect, limits)};
}

std::optional<HangWatch::Finding> HangWatch::check_absence(const std::vector<RankProcess>& ranks,
                                                           double elapsed_s) const {
  const auto ended = [](const RankProcess& rank) { return rank.exit.has_value(); };
  if (!board_ || std::none_of(ranks.begin(), ranks.end(), ended)) return {};
  std::vector<WatchedRank> watched;
  for (const RankProcess& rank : ranks) watched.push_back({rank, board_->read(rank.rank - first_rank_)});
  const auto found = find_absence(watched, {kAbsenceS, since_ns_, heartbeat::now_ns()}, elapsed_s, world_size_);
  if (!found) return {};
  const auto& [absent, waiting] = *found;
  return Finding{ranks[absent].rank,
                 concat(describe_exit(ranks[absent]), " and never came to where rank ", ranks[waiting].rank,
                        " waits for all ranks: every rank calls zeroshard.initialize, or none")};
}

void HangWatch::ask_for_stacks(const std::vector<RankProcess>& ranks) {
  asked_.clear();
  const int signal = stack_dump_signal();
  for (const WatchedRank& rank : look(ranks)) {
    const pid_t pid = rank.worker();
    // Leaves out processes without a handler, because the signal would end them.
    if (rank.process.exit || !handles_signal(pid, signal)) continue;
    uint32_t count = 0;
    for (const pid_t thread : {pid, rank.heart.waiting_thread}) {
      if (thread <= 0 || (count > 0 && thread == pid)) continue;
      if (::syscall(SYS_tgkill, pid, thread, signal) == 0) ++count;
    }
    asked_.push_back({rank.process.rank - first_rank_, rank.heart.dumps + count});
  }
}

bool HangWatch::stacks_printed() const {
  return std::all_of(asked_.begin(), asked_.end(), [this](const Asked& asked) {
    return static_cast<int32_t>(board_->read(asked.local_rank).dumps - asked.dumps) >= 0;
  });
}

}  // namespace zeroshard

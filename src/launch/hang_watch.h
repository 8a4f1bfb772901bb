#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/hang.h"
#include "launch/heartbeat_board.h"
#include "launch/rank_process.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// Detects hanging ranks. It owns the memory into which the ranks of this host write heartbeats, says whether the ranks
// hang, and can ask them to print their stacks.
class HangWatch {
 public:
  struct Finding {
    int rank;  // the rank that most likely causes the hang, or that ended
    std::string report;
  };

  // If the kernel cannot provide the shared memory, the object works without heartbeats. But if the user gave
  // --hang-timeout, which needs heartbeats, throws Error.
  explicit HangWatch(const LaunchOptions& options);

  int heartbeat_fd() const { return board_ ? board_->fd() : -1; }
  bool any_step() const { return board_ && board_->any_step(); }
  std::optional<int64_t> last_step(int rank) const;
  // Tells the ranks of this host how the job has failed on another host.
  void tell_ranks(std::string_view news) {
    if (board_) board_->tell(news);
  }
  // Makes check() and check_absence() ignore how long ranks were silent before this call.
  void forgive();

  // Returns a hang, if there is one. Looks at the ranks only eight times per --hang-timeout, or once a second if that
  // is more often; other calls return nothing. If --hang-timeout is 0, never finds a hang.
  std::optional<Finding> check(const std::vector<RankProcess>& ranks);

  // Returns a finding if a rank ended with 0 at least 8 s ago, and so will never arrive, and another rank has waited
  // for all ranks for at least 8 s. `elapsed_s` is the argument of find_absence().
  std::optional<Finding> check_absence(const std::vector<RankProcess>& ranks, double elapsed_s) const;

  // Asks each rank with a handler for stack_dump_signal() to print to stderr the stacks of its first thread and of the
  // thread that waits.
  void ask_for_stacks(const std::vector<RankProcess>& ranks);
  // Returns whether all stacks that were asked for have been printed.
  bool stacks_printed() const;

 private:
  struct Asked {
    int local_rank;
    uint32_t dumps;  // how many stacks the rank will have printed when it has answered
  };
  std::vector<WatchedRank> look(const std::vector<RankProcess>& ranks) const;

  double timeout_s_;
  int first_rank_, world_size_;
  std::optional<HeartbeatBoard> board_;
  int64_t since_ns_, last_check_ns_;
  std::vector<Asked> asked_;
};

}  // namespace zeroshard

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

// Gives the ranks of this host memory for heartbeats, notices when they hang and requests their stacks.
class HangWatch {
 public:
  struct Finding {
    int rank;  // the most likely cause, or the one that ended
    std::string report;
  };

  // If the kernel has no shared memory for it there are no heartbeats: throws Error if --hang-timeout needs them.
  explicit HangWatch(const LaunchOptions& options);

  int heartbeat_fd() const { return board_ ? board_->fd() : -1; }
  bool any_step() const { return board_ && board_->any_step(); }
  std::optional<int64_t> last_step(int rank) const;
  // Tells this host's ranks how the job has failed on another host.
  void tell_ranks(std::string_view news) {
    if (board_) board_->tell(news);
  }
  // Ignores silence up to now.
  void forgive();

  // Checks a few times per --hang-timeout; never finds anything when that is 0.
  std::optional<Finding> check(const std::vector<RankProcess>& ranks);

  // A rank that ended with 0, and so will never arrive, while another one waits for all ranks. `elapsed_s` as in
  // find_absence().
  std::optional<Finding> check_absence(const std::vector<RankProcess>& ranks, double elapsed_s) const;

  // Asks all ranks that support it to print the stacks of their first and of their waiting thread to stderr.
  void ask_for_stacks(const std::vector<RankProcess>& ranks);
  bool stacks_printed() const;

 private:
  struct Asked {
    int local_rank;
    uint32_t dumps;  // the rank's count once it has printed them
  };
  std::vector<WatchedRank> look(const std::vector<RankProcess>& ranks) const;

  double timeout_s_;
  int first_rank_, world_size_;
  std::optional<HeartbeatBoard> board_;
  int64_t since_ns_, last_check_ns_;
  std::vector<Asked> asked_;
};

}  // namespace zeroshard

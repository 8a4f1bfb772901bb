#pragma once
#include <chrono>
#include <vector>

#include "base/unique_fd.h"
#include "launch/environment.h"
#include "launch/rank_output.h"
#include "launch/rank_process.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"

namespace zeroshard {

// Tells which children ended, in the order in which they ended. waitid(2) has no order, and the first end is the one
// that caused the others' errors.
class ExitOrder {
 public:
  ExitOrder();
  void add(pid_t pid);  // does nothing on kernels without pidfd_open (before 5.3)
  std::vector<pid_t> ended();

 private:
  UniqueFd epoll_;
  std::vector<std::pair<pid_t, UniqueFd>> pidfds_;
};

// The process of a rank could not be started.
class RankStartError : public Error {
 public:
  RankStartError(int rank, const std::string& message) : Error(message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

// The processes of this host's ranks and everything they start. This process becomes their "subreaper", so that
// processes which lose their parent become its children. Use it in a process without other children.
class RankGroup {
 public:
  // Starts the ranks. If one cannot be started, kills the others and throws RankStartError.
  RankGroup(const LaunchOptions& options, const Start& how, const sigset_t& signal_mask);

  // The ranks' output streams, for the caller to read. Call it once.
  std::vector<RankStream> take_streams() { return std::move(streams_); }
  const std::vector<RankProcess>& ranks() const { return ranks_; }
  double elapsed_s() const;

  // Notes which ranks ended, stopped or continued, and reaps other processes. Returns the ranks that ended, in order.
  std::vector<RankProcess> reap();
  bool all_exited() const;
  // True when no process is left, not even one that a rank left behind.
  bool empty() const;

  // True while there is a process in the group of any rank.
  bool has_group_members() const;

  // To all living ranks, according to options.signal_whole_group.
  void signal(int signal) const;
  // To the whole groups of all living ranks; stopped processes are continued so that they receive it.
  void end(int signal) const;
  // To every process below this one.
  void signal_descendants(int signal) const;

 private:
  void start(const LaunchOptions& options, int local_rank, const Start& how, const sigset_t& signal_mask);
  bool reap_rank(RankProcess& rank);
  void update_stopped(RankProcess& rank);
  void reap_others();
  RankProcess* find(pid_t pid);

  std::chrono::steady_clock::time_point start_;
  bool signal_whole_group_;
  std::vector<RankProcess> ranks_;
  std::vector<RankStream> streams_;
  ExitOrder exit_order_;
};

}  // namespace zeroshard

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

// Notes the order in which child processes end. The order matters because the first process that fails usually causes
// the errors of the others. waitid(2) does not tell this order.
class ExitOrder {
 public:
  ExitOrder();
  void add(pid_t pid);         // on kernels without pidfd_open (before 5.3), does nothing
  std::vector<pid_t> ended();  // the processes that have ended since the last call, the earliest first

 private:
  UniqueFd epoll_;
  std::vector<std::pair<pid_t, UniqueFd>> pidfds_;
};

// Thrown if the process of a rank cannot be started.
class RankStartError : public Error {
 public:
  RankStartError(int rank, const std::string& message) : Error(message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

// The processes of this host's ranks, and all processes that the ranks start. This process becomes their "subreaper",
// so a process that loses its parent becomes a child of this one. Only a process without other children may use the
// class.
class RankGroup {
 public:
  // Starts the ranks. If a rank cannot be started, kills the others and throws RankStartError.
  RankGroup(const LaunchOptions& options, const Start& how, const sigset_t& signal_mask);

  // Hands the ranks' output streams to the caller, who must read them. Must be called only once.
  std::vector<RankStream> take_streams() { return std::move(streams_); }
  const std::vector<RankProcess>& ranks() const { return ranks_; }
  double elapsed_s() const;

  // Notes which ranks have ended, stopped or continued, and reaps all other processes that have ended. Returns the
  // ranks that have ended since the last call, in the order in which they did.
  std::vector<RankProcess> reap();
  bool all_exited() const;
  // Returns whether no process is left, not even one that a rank has left behind.
  bool empty() const;

  // Returns whether the process group of some rank still has a process.
  bool has_group_members() const;

  // Sends `signal` to all living ranks, or to their process groups if options.signal_whole_group is set.
  void signal(int signal) const;
  // Sends `signal` to the process groups of all living ranks. Continues stopped processes, so that they get the signal.
  void end(int signal) const;
  // Sends `signal` to every process below this one.
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

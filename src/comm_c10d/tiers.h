#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/direct_comm.h"

namespace zeroshard {

// Runs collectives of ranks on several hosts in two levels, so that bytes cross the network once for each host. Each
// rank talks to the ranks with its own number on the other hosts (the link), and to the ranks of its host through
// shared memory. All hosts have equally many ranks, with consecutive numbers.
//
// Note [The thread between two levels]
// A rank of the host must pass on what has come over the link while its own thread computes or waits elsewhere;
// otherwise two ranks could wait for one another. So a thread of this class does all the work, in the order of the
// calls. It checks only what it needs: the caller, who waits for the Work, watches for time-outs, interrupts and
// failures on other hosts, and calls abort().
class Tiers {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `host` has the ranks of this host, and `link` the ranks with this rank's number on all hosts, in their order.
  Tiers(std::unique_ptr<DirectComm> host, c10::intrusive_ptr<c10d::ProcessGroup> link);
  // Abandons collectives that are not done.
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  int hosts() const { return link_->getSize(); }
  int ranks_per_host() const { return host_->world_size(); }

  // The meaning of the arguments is that of Comm. The caller keeps the memory until the Work is done.
  WorkPtr all_gather(Span full, ConstSpan shard, std::string_view tag);
  // `data` has bytes.
  WorkPtr broadcast(const at::Tensor& data, int root, std::string_view tag);
  // Sums the pieces of each host's ranks, and exchanges these sums: from shard_sums() on, `sums` has one sum in fp32
  // for each host, of this rank's slice. `sums` has room for twice as many.
  WorkPtr exchange(ConstSpan full, float* sums, std::string_view tag);
  float* shard_sums(const ConstSpan& full, float* sums) const { return sums + full.numel / ranks_per_host(); }
  // Allocates memory that the ranks of this host can read directly.
  WorkPtr allocate(int64_t bytes, std::string_view tag, const std::shared_ptr<std::unique_ptr<Allocation>>& result);

  // Makes all collectives fail, also those of the other ranks of this host. Any thread may call it.
  void abort(std::string_view reason) noexcept;
  // Returns whether a collective has failed. The link may then still use its memory.
  bool has_failed();

 private:
  class Job;
  using JobPtr = c10::intrusive_ptr<Job>;
  struct Piece {
    JobPtr job;
    int64_t begin, bytes;  // of the shard
    size_t window;
    WorkPtr link;
  };
  // Memory that the link writes to and the ranks of the host read.
  struct Window {
    std::unique_ptr<Allocation> memory;
    std::unique_ptr<Exchange> readers = nullptr;  // the last use; null: none
  };

  WorkPtr add(JobPtr job);
  JobPtr await_job();
  JobPtr next_gather();
  void end_job();
  void run();
  void begin_pieces();
  void begin_piece(const JobPtr& job);
  void end_piece();
  void await(c10d::Work& work);
  void sum_and_exchange(const ConstSpan& full, float* sums, const std::string& tag);
  void broadcast_here(const at::Tensor& data, int root, const std::string& tag);
  void throw_if_stopped();
  at::Tensor window_bytes(size_t window, int64_t bytes) const;

  std::unique_ptr<DirectComm> host_;
  c10::intrusive_ptr<c10d::ProcessGroup> link_;
  std::vector<Window> windows_;  // allocated with the first gather
  std::deque<Piece> pieces_;     // under way, oldest first
  int64_t begun_ = 0;            // pieces since the start

  std::mutex mutex_;  // protects the members below
  std::condition_variable changed_;
  std::deque<JobPtr> queue_;  // jobs that are not done, oldest first
  bool stops_ = false;
  std::string reason_;          // why collectives fail; "": they do not
  std::exception_ptr failure_;  // what ended the thread; null: nothing
  std::thread thread_;
};

}  // namespace zeroshard

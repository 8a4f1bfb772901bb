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
// rank has a link, which is a process group that connects it to the ranks in the same position on the other hosts. The
// ranks of a host use shared memory among themselves. All hosts have equally many ranks, with consecutive numbers.
//
// Note [The thread between two levels]
// The data that comes over a rank's link must reach the other ranks of its host even while the program's thread of that
// rank computes or waits for something else. Otherwise two ranks could wait for one another. So a thread of this class
// does all the work, in the order of the calls. This thread does not watch for time-outs, interrupts and failures on
// other hosts. The caller of a collective watches for these while it waits for the Work, and calls abort().
class Tiers {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `host` has the ranks of this host. `link` has the ranks with this rank's position on all hosts, in the order of the
  // hosts.
  Tiers(std::unique_ptr<DirectComm> host, c10::intrusive_ptr<c10d::ProcessGroup> link);
  // Makes collectives that are not done fail on all ranks of this host.
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  int hosts() const { return link_->getSize(); }
  int ranks_per_host() const { return host_->world_size(); }

  // Starts an all-gather. The arguments of this function and the next two mean the same as in Comm. The caller must
  // keep the memory until the Work is done.
  WorkPtr all_gather(Span full, ConstSpan shard, std::string_view tag);
  // `data` must be a tensor of bytes.
  WorkPtr broadcast(const at::Tensor& data, int root, std::string_view tag);
  // `full` consists of one slice of full.numel / world_size elements for each rank. On each host, sums every slice over
  // the ranks of the host in fp32, and sends the sum to the rank of the slice. `sums` must have room for two fp32
  // slices for each host. When the Work is done, shard_sums() points at the sums that this rank has received, which are
  // one fp32 slice from each host.
  WorkPtr exchange(ConstSpan full, float* sums, std::string_view tag);
  float* shard_sums(const ConstSpan& full, float* sums) const { return sums + full.numel / ranks_per_host(); }
  // Allocates memory that the ranks of this host can read directly. `*result` has the memory when the Work is done.
  WorkPtr allocate(int64_t bytes, std::string_view tag, const std::shared_ptr<std::unique_ptr<Allocation>>& result);

  // Makes all collectives fail on all ranks of this host. Any thread may call it.
  void abort(std::string_view reason) noexcept;
  // Returns whether a collective has failed. If so, the link might still use the memory of that collective.
  bool has_failed();

 private:
  class Job;
  using JobPtr = c10::intrusive_ptr<Job>;
  struct Piece {
    JobPtr job;
    int64_t begin, bytes;  // the piece's first byte within the shard, and its size
    size_t window;
    WorkPtr link;
  };
  // Memory to which the link writes, and from which the ranks of the host read.
  struct Window {
    std::unique_ptr<Allocation> memory;
    std::unique_ptr<Exchange> readers = nullptr;  // the exchange that last read the window; null: none
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
  std::deque<Piece> pieces_;     // pieces that the link was given and that are not copied yet, oldest first
  int64_t begun_ = 0;            // number of pieces that the link was given so far

  std::mutex mutex_;  // protects the members below
  std::condition_variable changed_;
  std::deque<JobPtr> queue_;  // jobs that are not done, oldest first
  bool stops_ = false;
  std::string reason_;          // why all collectives fail; "": they do not fail
  std::exception_ptr failure_;  // the error that ended the thread; null: none
  std::thread thread_;
};

}  // namespace zeroshard

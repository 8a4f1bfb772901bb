#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "device/flat_buffer.h"
#include "plan/buffer_sizes.h"

namespace zeroshard {

class GradBucket;

// Adds up the gradients of a shard over the replicas. Each replica contributes the sum over its own ranks, in fp32. The
// replicas' sums are added by the tree of math::sum_in_order(). If a replica has a power of two of ranks and sums are
// not coded, this gives the same bits as one tree over all ranks. A reduce-scatter gives each replica one piece of the
// sum over all replicas. If the replicas share the optimizer states, no replica needs more than its piece. Otherwise an
// all-gather gives each replica the whole sum. With R replicas, each replica sends (R - 1) / R of the sum's elements in
// the reduce-scatter, and as many in the all-gather. One object has the memory for one sum at a time.
//
// Note [Sums in 8 bits]
// If sums are coded, their elements travel as 8-bit codes (see Note [The dynamic map] in kernels/codes_impl.h). Each
// block of kScaledNumel elements has one fp32 scale. Each replica decodes the pieces that it receives to fp32, and adds
// them in the order of the tree. If there is an all-gather, each replica then encodes its piece of the sum, and the
// codes are gathered. All replicas decode the same codes, so they stay equal. Neighbouring values of the map are at
// most 0.9 / 64 of the block's largest element apart. So each encoding changes an element by at most half of that,
// which is 0.7 % of the block's largest element.
//
// Call partial(), begin(), gather() and finish() in this order. gather() and finish() wait for the collective that the
// call before has started. All replicas must make the calls on all their objects in the same order.
class ReplicaSum {
 public:
  struct Options {
    bool is_coded = false;
    bool gathers = true;     // true: each replica gets the whole sum; false: only its piece
    RingClass buffers = {};  // the result of replica_buffers()
    at::Device device = at::kCPU;
  };
  // Collective over `replicas`, which must outlive the object.
  ReplicaSum(Comm& replicas, const Options& options, Ledger& ledger);

  // Returns memory for this replica's own sum, as `numel` fp32 elements. The caller fills it before begin(). Waits for
  // the collectives of the earlier sum in this memory.
  at::Tensor partial(int64_t numel);
  // Starts to exchange the replicas' own sums, which are in the memory of partial(). `tag` names the unit.
  void begin(std::string tag);
  // Sums this replica's piece over the replicas. If each replica gets the whole sum, starts to gather the summed
  // pieces.
  void gather();
  // Makes the current stream wait until no collective uses the memory.
  void await();
  // Returns the sum over all replicas, or this replica's piece of it. It is valid until the next partial().
  at::Tensor finish();

 private:
  int64_t piece_numel() const;
  at::Tensor values(int piece) const;
  Span sent() const;
  std::byte* sent_piece(int piece) const;
  void encode(int piece);
  void decode(const void* codes, int piece);

  Comm& replicas_;
  bool is_coded_, gathers_;
  FlatBuffer memory_;
  int64_t numel_ = 0;  // elements of the present sum
  std::string tag_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Work> gather_;
};

// Runs several sums over replicas at the same time. While one sum is exchanged, the sum before it is gathered, and both
// overlap backward.
//
// Note [Launches of replicas]
// A call of add() waits until the other replicas make the same call. So all ranks must make the call at the same point
// of a pass, between the same two gathers. This point is the launch of the next bucket. If only one rank needs memory
// or has a late gradient, it must not make the call earlier.
class ReplicaSums {
 public:
  // Collective over `replicas`.
  ReplicaSums(Comm& replicas, const ReplicaSum::Options& options, Ledger& ledger);

  // Starts the sum over replicas of `bucket`, which must be in flight. Before that, finishes the oldest sum if no
  // memory is free, and calls ReplicaSum::gather() for the sum that was started by the add() before, unless that sum is
  // finished.
  void add(GradBucket& bucket);
  void finish_all();
  // Makes the current stream wait until no collective uses the memory of the sums.
  void await_all();

 private:
  struct Running {
    GradBucket* bucket;
    ReplicaSum* sum;
    bool gathers = false;
  };
  void finish_oldest();

  std::vector<ReplicaSum> sums_;
  std::deque<Running> running_;  // oldest first
  size_t count_ = 0;             // number of sums started so far
};

}  // namespace zeroshard

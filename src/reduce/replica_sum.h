#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "device/flat_buffer.h"
#include "plan/state_rules.h"

namespace zeroshard {

class GradBucket;

// Adds the sums that the replicas of a shard have of its gradients. The sums are fp32 and nodes of the tree that
// math::sum_in_order() adds. A reduce-scatter gives each replica its piece of the sum over all ranks, which is all that
// a replica needs if the replicas share the optimizer states. Otherwise an all-gather gives each replica the whole sum.
// Each of the two moves (R - 1) / R elements for each element of a sum. One object has the memory for one sum at a
// time.
//
// Note [Sums in 8 bits]
// Coded elements travel as codes of Note [The dynamic map] (kernels/codes_impl.h), in blocks of kScaledNumel elements
// with one fp32 scale each. Each replica decodes all pieces to fp32, adds them in the order of the tree, and encodes
// its piece of the sum for the all-gather, if there is one. All replicas then decode the same codes, so they stay
// equal. Each of these roundings is off by at most 0.7 % of the largest element of the block, which is half of the
// largest distance between values of the map (0.9 / 64).
//
// Call partial(), begin(), gather() and finish() in this order. Each waits for what the one before has started. All
// replicas make these calls in the same order for all their objects.
class ReplicaSum {
 public:
  struct Options {
    bool is_coded = false;
    bool gathers = true;     // each replica gets the whole sum; false: only its piece
    RingClass buffers = {};  // replica_buffers()
    at::Device device = at::kCPU;
  };
  // Collective over `replicas`, which must outlive the object.
  ReplicaSum(Comm& replicas, const Options& options, Ledger& ledger);

  // Returns `numel` elements of memory for the sum of this replica.
  at::Tensor partial(int64_t numel);
  // Starts to exchange the sums that partial() has. `tag` names the unit.
  void begin(std::string tag);
  // Sums this rank's piece over the replicas, and starts to gather the pieces, if they are gathered.
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
  int64_t numel_ = 0;  // of the present sum
  std::string tag_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Work> gather_;
};

// The sums over replicas that run at the same time: one is exchanged while the one before is gathered, and both overlap
// backward.
//
// Note [Launches of replicas]
// Each call of add() waits for the same call on the other replicas. So all ranks make it at the same place between two
// gathers of a pass, which is the launch of the next bucket: a rank must not make it earlier because it alone needs
// memory or has a late gradient.
class ReplicaSums {
 public:
  // Collective over `replicas`.
  ReplicaSums(Comm& replicas, const ReplicaSum::Options& options, Ledger& ledger);

  // Finishes or moves on the earlier sums, and starts the sum of a bucket in flight.
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
  size_t count_ = 0;             // of sums that were started
};

}  // namespace zeroshard

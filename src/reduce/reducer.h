#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/state_rules.h"
#include "reduce/grad_bucket.h"
#include "reduce/replica_sum.h"

namespace zeroshard {

// Owns all gradient buckets of a run. Decides when each is launched and finished, and lends them buffers.
//
// Buckets are launched in one order on all ranks, whatever order their gradients arrive in. In the first backward pass
// it is the reverse of the order in which rank 0's forward pass needed the units. Afterwards it is the order in which
// rank 0 completed the buckets in that first pass. So a parameter that gets no gradient on some rank delays its bucket
// there, but never makes ranks disagree. Reductions run while backward continues: a bucket is finished when a later one
// is launched, or when backward ends.
//
// Note [Buckets without gradients]
// A unit's backward may give no gradients on one rank, because it failed there or because this rank's forward skipped
// the unit's layers. Ranks with gradients wait for the bucket before their next gather, so this rank launches it at the
// same point: at the end of the unit at which the bucket was ready in the previous pass, or in the first pass after as
// many ends as the unit has uses. An earlier launch would make later gradients late, and they would need another launch
// on all ranks. Units that are not sharded do the same although no rank waits, because the terms of one launch, and so
// its rounding, must not depend on the stage. Therefore a sum under no_sync does not join such a launch. It joins a
// launch with gradients, or the end of the pass.
class Reducer {
 public:
  struct Options : ReduceOptions {
    bool overlap = true;
    std::vector<RingClass> ring;     // classes of ring slots for packed gradients: reduce_ring()
    RingClass scratch = {};          // one slot per overlapping exchange: exchange_scratch()
    RingClass replica_buffers = {};  // buffers of sums over replicas: replica_buffers()
    bool quantized = false;          // sums have 8 bits between replicas
    bool share_states = false;       // each replica needs only its part of a sum
    Comm* all = nullptr;             // all ranks, if there are several replicas
    Comm* replicas = nullptr;        // the ranks that reduce the same shard; null: there is one replica
    RingClass exit_buffers = {};     // buffers of reduced gradients that go to the host: gradient_exit()
    bool pin = true;                 // pin the host memory of reduced gradients
    SwapSpace* files = nullptr;      // swap files of reduced gradients; must outlive the reducer
  };

  // Collective, because it allocates. `comm` has the ranks that reduce to shards of one replica. `placements` is
  // indexed by unit. The layouts, the communicators and `ledger` must outlive the reducer.
  Reducer(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options, Comm& comm,
          Ledger& ledger);
  // The reducer may be destroyed while buckets are in flight, as after a loss.backward() that nobody has ended.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it before the first gradient of a backward pass. `needed` has the units of the forward pass in order, one
  // entry per use. The first call with `sync` is collective over `gather_comm`, and throws if the ranks' forward
  // passes differ. If all ranks leave the call out, the first backward pass launches buckets from the last unit to the
  // first.
  void begin_backward(std::span<const size_t> needed, bool sync, Comm& gather_comm);
  // Starts to read the earlier gradients of the step from files, because this backward adds to them.
  void read_ahead();
  // Takes a dense gradient from autograd. `param` is an index into UnitLayout::params. If `sync` is false, the gradient
  // is only added to this rank's own sum.
  void add(size_t unit, size_t param, const at::Tensor& grad, bool sync);
  // Call it when a backward of this unit has ended, on this rank or (if this rank does not need the unit) on others.
  void flush(size_t unit);
  // Launches and finishes every bucket once.
  void launch_all(bool sync);
  // Returns one number per bucket: 0, or, if gradients arrived after its launch, a number that identifies the end of
  // the unit at which they arrived. Gradients of a pass without `sync` count in the same way. If any rank has late
  // gradients, the bucket needs a second launch on all ranks: pass the maximum over ranks to launch_again().
  std::vector<int64_t> late() const;
  void launch_again(const std::vector<int64_t>& late);
  // Launches and finishes everything. Afterwards the reduced gradients can be read.
  void end_backward(bool sync);
  // Drops all gradients since the last step and forgets the running pass. Call it after launch_all().
  void discard();
  // For groups that all ranks update whole: gives every rank the reduced gradients of all ranks.
  void gather_reduced();
  // See GradBucket::replace().
  void replace(size_t bucket, size_t index, const at::Tensor& values);
  // Returns whether any rank may have had a gradient of the parameter since the last step, which is true if its bucket
  // was reduced. drop() sets the gradient to zero.
  bool has_grad(size_t unit, size_t param) const;
  void drop(size_t unit, size_t param);
  void end_step();

  // Returns the units in the order in which the next forward pass probably needs them: the reverse of the order of
  // launches, so it is the same on all ranks. Units without a bucket come last.
  const std::vector<size_t>& order_of_forward() const { return order_of_forward_; }
  // Returns one bucket per trained group, in the order of units and their groups.
  const std::vector<GradBucket>& buckets() const { return buckets_; }
  // Returns the sum of squares of this rank's shards over all units. On a device the host waits for it. The gradients
  // are still multiplied by the loss scale.
  ExactSum squares() const;

 private:
  enum class Basis { kUnits, kForward, kBackward };  // source of the order of launches
  struct Place {                                     // place of a parameter
    int bucket = -1;
    size_t index = 0;
  };
  void make_buckets(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
  size_t num_units() const { return first_of_.size() - 1; }
  GradBucket& filling(size_t bucket);
  SlotRing::Slot* acquire_slot(int64_t bytes);
  void mark_ready(size_t bucket);
  void reset_pass();
  void launch_ready();
  void launch(size_t bucket, bool with_local);
  void finish_oldest();
  void finish_overlapped();
  void finish_replicas();
  void finish_all();
  void set_order(std::vector<size_t> order);
  void take_order_of_rank_0(const std::vector<size_t>& own, Comm& comm, std::string_view tag);

  Options options_;
  Comm& comm_;
  Ledger& ledger_;
  std::vector<FlatBuffer> memory_;       // memory of packed gradients that are kept, and of reduced gradients
  std::unique_ptr<GradientExit> exit_;   // null if reduced gradients stay on the device
  std::optional<SlotRing> ring_;         // buffers of packed gradients that are not kept
  std::optional<ReplicaSums> replicas_;  // sums over several replicas
  std::vector<FlatBuffer> scratch_;      // memory for transports that copy pieces
  std::vector<GradBucket> buckets_;
  std::vector<size_t> first_of_;              // by unit, and one for the end: index of its first bucket
  std::vector<std::vector<Place>> place_of_;  // [unit][param]
  std::vector<size_t> order_;                 // order of launches, the same on all ranks
  std::vector<size_t> order_of_forward_;      // order of units, derived from order_
  std::vector<size_t> completed_;             // buckets of the first backward pass, in the order of completion
  Basis basis_ = Basis::kUnits;
  size_t launches_ = 0;
  std::vector<bool> ready_;
  // By bucket, for Note [Buckets without gradients]:
  std::vector<bool> empty_;    // launched, or ready to launch, without any gradient of this pass
  std::vector<int> ends_;      // ends of its unit in this pass
  std::vector<int> ready_at_;  // the first end at which it was ready in this pass, or 0
  std::vector<int> due_at_;    // the end at which it is ready at the latest
  size_t next_ = 0;            // position in order_
  size_t last_added_ = 0;      // bucket that got the last gradient: no other bucket has gradients that wait for packing
  std::deque<size_t> in_flight_;
  std::map<int64_t, std::deque<GradBucket::Lent>> draining_;  // by bytes: buffers that peers may still read
  SideStream stream_;  // stream of exchanges and their sums; the last member, so that it is destroyed before the memory
};

}  // namespace zeroshard

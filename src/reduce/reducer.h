#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plan/buffer_sizes.h"
#include "reduce/grad_bucket.h"
#include "reduce/launch_order.h"
#include "reduce/replica_sum.h"

namespace zeroshard {

// Owns all gradient buckets of a run. Decides when the reduction of each bucket is launched and finished, and lends
// buffers to the buckets.
//
// All ranks launch the buckets in the same order (see LaunchOrder), even if gradients arrive in another order. A
// parameter that gets no gradient on some rank delays the launch of its bucket there, but does not change the order.
// Reductions run while backward continues. A bucket is finished at the latest when the next bucket is launched or when
// backward ends. (With several replicas, only its sum within the replica is finished then.) Without Options::overlap it
// is finished as soon as it is launched.
//
// Note [Buckets without gradients]
// A unit's backward may give no gradients on one rank, because backward failed there or because this rank's forward
// skipped the unit's layers. The other ranks have gradients, launch the unit's bucket, and wait for it before their
// next gather. So this rank must launch the bucket, too, at the same point of the pass.
//
// If forward uses a unit several times, backward comes to the unit and leaves it several times. Each time it leaves the
// unit is called an end, and end_unit_backward() is called there. The ends of a unit in a pass are numbered from 1. In
// the first pass, a bucket without gradients is launched at the unit's last end. In a later pass, it is launched at the
// end that has the same number as the end at which the bucket was ready in the pass before. An earlier launch would
// make later gradients late, and late gradients need another launch on all ranks.
//
// Buckets of units that are not sharded are launched by the same rule, although no rank waits for them. In this case
// the rule ensures that the terms of one launch, and so its rounding, do not depend on the ZeRO stage. For this reason,
// a rank's own sum under no_sync does not join a launch without gradients. It joins a launch with gradients, or the
// launch at the end of the pass.
class Reducer {
 public:
  struct Options : ReduceOptions {
    bool overlap = true;
    std::vector<RingClass> ring;     // result of reduce_ring(): slots for packed gradients
    RingClass scratch = {};          // result of exchange_scratch(): one slot per overlapping exchange
    RingClass replica_buffers = {};  // result of replica_buffers(): buffers of sums over replicas
    bool quantized = false;          // replicas send each other sums of gradients as 8-bit numbers
    bool share_states = false;       // each replica needs only its part of a sum
    Comm* all = nullptr;             // all ranks, if there are several replicas
    Comm* replicas = nullptr;        // the ranks that reduce the same shard; null: there is one replica
    RingClass exit_buffers = {};     // result of gradient_exit(): buffers of gradients that leave the device
    bool pin = true;                 // whether host memory of reduced gradients is page-locked
    SwapSpace* files = nullptr;      // swap files of reduced gradients; must outlive the reducer
  };

  // Collective, because it allocates. `comm` has the ranks of one replica, among which each reduced gradient is
  // sharded. `placements` is indexed by unit. The layouts, the communicators and `ledger` must outlive the reducer.
  Reducer(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options, Comm& comm,
          Ledger& ledger);
  // The reducer may be destroyed while buckets are in flight, as after a loss.backward() for which nobody called
  // end_backward().
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Call it before the first gradient of a backward pass. `needed` lists the units in the order in which the forward
  // pass used them, with one entry per use. The first call with `sync` makes the first backward pass launch buckets in
  // the reverse of rank 0's order. This call is collective over `gather_comm` and Options::all, and throws if the
  // ranks' forward passes differ. A call does nothing without `sync`, after the first such call, or if a bucket was
  // launched or completed before. Without any call of this function, the first backward pass launches buckets from the
  // last unit to the first. Either all ranks make the call, or none.
  void begin_backward(std::span<const size_t> needed, bool sync, Comm& gather_comm);
  // If reduced gradients are in files, starts to read those of earlier micro-batches of the step, because this backward
  // adds to them.
  void read_ahead();
  // Takes a dense gradient from autograd. This may launch buckets that are ready, and wait for other ranks, like
  // end_unit_backward(). `param` is an index into UnitLayout::params. If `sync` is false (under no_sync), the gradient
  // is only added to this rank's own sum.
  void add(size_t unit, size_t param, const at::Tensor& grad, bool sync);
  // Call it each time the unit's backward ends. A rank that does not use the unit calls it where the unit's backward
  // ends on other ranks. Makes the unit's buckets ready to launch if they have gradients, or if their launch is due
  // (see Note [Buckets without gradients]).
  void end_unit_backward(size_t unit);
  // Launches every bucket that this pass has not launched yet, and finishes all buckets. Does nothing without `sync`.
  // Collective with `sync`.
  void launch_all(bool sync);
  // A gradient is late if no launch has included it, because it arrived after the launch of its bucket, or in a pass
  // without `sync`. If any rank has late gradients of a bucket, all ranks must launch the bucket again. late() returns
  // 0 for a bucket without late gradients. For any other bucket it returns a positive number, which is larger the
  // earlier the end was at which the bucket was ready (see Note [Buckets without gradients]). Pass launch_again() the
  // maximum of each bucket's numbers over all ranks.
  std::vector<int64_t> late() const;
  void launch_again(const std::vector<int64_t>& late);
  // Launches and finishes everything. Afterwards the reduced gradients can be read. Does nothing without `sync`, and is
  // collective with `sync`. If there are several ranks, the caller must first call launch_all(), and launch_again()
  // with the maximum of late() over ranks, so that no rank has late gradients here. After the first such call, all
  // ranks launch buckets in the order in which rank 0 completed them.
  void end_backward(bool sync);
  // Drops all gradients since the last step and forgets the running pass. Call it after launch_all().
  void discard();
  // Gathers the ranks' parts of the reduced gradients on every rank, for groups that all ranks update whole.
  // Collective.
  void gather_reduced();
  // See GradBucket::replace().
  void replace(size_t bucket, size_t index, const at::Tensor& values);
  // has_grad() returns whether any rank may have had a gradient of the parameter since the last step. It returns true
  // if the parameter's bucket was reduced, or if this rank had a gradient. drop() calls GradBucket::drop().
  bool has_grad(size_t unit, size_t param) const;
  void drop(size_t unit, size_t param);
  void end_step();

  // Returns the units in the order in which the next forward pass probably needs them. This is the reverse of the order
  // of launches, so it is the same on all ranks. Units without a bucket come last.
  const std::vector<size_t>& order_of_forward() const { return order_->units_of_forward(); }
  // Returns one bucket per trained group, in the order of units and their groups.
  const std::vector<GradBucket>& buckets() const { return buckets_; }
  // Returns the sum of squares of this rank's reduced gradients over all units. The gradients are still multiplied by
  // the loss scale. On a device, the host waits for the result.
  ExactSum squares() const;

 private:
  struct Place {  // where a parameter is; bucket -1: it is frozen
    int bucket = -1;
    size_t index = 0;
  };
  // How far a bucket is in a pass. Note [Buckets without gradients] says what an end is, and how ends are numbered.
  struct Progress {
    bool is_ready = false;
    bool is_empty = false;  // launched, or ready to launch, without any gradient of this pass
    int ends = 0;           // how many ends this pass has had so far
    int ready_at = 0;       // number of the end at which the bucket was first ready in this pass; 0: not yet
    int due_at = 1;         // number of the end from which on the bucket is ready even without gradients
  };
  void make_buckets(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements);
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

  Options options_;
  Comm& comm_;
  Ledger& ledger_;
  std::vector<FlatBuffer> memory_;       // memory of packed gradients that are kept, and of reduced gradients
  std::unique_ptr<GradientExit> exit_;   // null if no reduced gradients leave a device
  std::optional<SlotRing> ring_;         // buffers of packed gradients that are not kept
  std::optional<ReplicaSums> replicas_;  // sums over several replicas
  std::vector<FlatBuffer> scratch_;      // for transports that copy the pieces of peers' gradients
  std::vector<GradBucket> buckets_;
  std::vector<std::vector<Place>> place_of_;  // [unit][param]
  std::optional<LaunchOrder> order_;          // set by make_buckets()
  std::vector<Progress> progress_;            // by bucket
  size_t launches_ = 0;
  size_t next_ = 0;        // position in the order of launches
  size_t last_added_ = 0;  // bucket that got the last gradient; only in this one may gradients wait for packing
  std::deque<size_t> in_flight_;
  std::map<int64_t, std::deque<GradBucket::Lent>> draining_;  // buffers that peers may still read, by size
  SideStream stream_;  // stream of exchanges and their sums; the last member, so that it is destroyed before the memory
};

}  // namespace zeroshard

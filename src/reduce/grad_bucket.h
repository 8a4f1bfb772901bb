#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "comm/comm.h"
#include "device/math.h"
#include "device/slot_ring.h"
#include "device/streams.h"
#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "reduce/gradient_counts.h"
#include "reduce/own_sum.h"
#include "reduce/reduced_gradients.h"

namespace zeroshard {

// Takes the gradients of one trained group of a unit from autograd, and reduces them over ranks to the elements that
// this rank updates.
//
// The states are Idle -> begin() -> Filling -> launch() -> InFlight -> finish() -> Draining (peers may still read the
// packed gradients) -> Idle. With several replicas, finish() is replaced by sum_in_replica() -> Crossing (the sum is
// added over replicas) -> take_sum(). Gradients are packed in a buffer. The bucket has a buffer of its own for the
// whole run if its placement keeps packed gradients. Otherwise it borrows a buffer from a ring.
class GradBucket {
 public:
  // `full` is the bucket's own buffer of padded_numel packed elements. It is undefined if a ring lends buffers. `grads`
  // gets the reduced gradients of the elements that this rank updates: this rank's part, or all padded_numel elements.
  // The memory of `full` and `grads` must outlive the bucket, and so must `unit`, `options` and `comm`.
  GradBucket(const UnitLayout& unit, size_t group, const GroupPlacement& place, const ReduceOptions& options,
             Comm& comm, at::Tensor full, std::unique_ptr<Array> grads);

  const FlatGroup& group() const { return group_; }
  const std::string& unit_name() const { return unit_.name; }
  DType wire_dtype() const { return place_.wire_dtype; }
  bool updates_whole() const { return place_.updates_whole(); }
  int64_t slot_bytes() const;
  bool needs_slot() const { return !full_.defined(); }

  bool is_idle() const { return std::holds_alternative<Idle>(state_); }
  bool is_filling() const { return std::holds_alternative<Filling>(state_); }
  bool is_in_flight() const {
    return std::holds_alternative<InFlight>(state_) || std::holds_alternative<Crossing>(state_);
  }
  bool is_draining() const { return std::holds_alternative<Draining>(state_); }

  // Idle -> Filling. `slot` is null unless needs_slot().
  void begin(SlotRing::Slot* slot);
  // Packs the gradient of parameter `index` of the group. If the parameter already has a gradient, adds to it. On a
  // device, a small gradient may wait for pack() or launch(), so that one kernel packs several.
  void add(size_t index, const at::Tensor& grad);
  // Packs the gradients that wait for packing. Call it before another bucket gets gradients.
  void pack();
  // Adds a gradient of a pass under no_sync to this rank's own sum, not to the packed gradients. The next launch with
  // `with_local` adds this sum to the packed gradients. Allowed in any state. The first call allocates the memory of
  // the sum.
  void add_local(size_t index, const at::Tensor& grad);
  // Adds a gradient that comes while the bucket is in flight to this rank's own sum. Unlike add_local(), counts it
  // among the parameter's gradients of the pass.
  void add_late(size_t index, const at::Tensor& grad);
  // Returns whether this rank's own sum waits for a launch.
  bool has_local() const { return own_sum_.is_used(); }
  // See GradientCounts.
  bool is_complete() const { return counts_.is_complete(); }

  // Filling -> InFlight. A parameter without a gradient counts as zero. `scratch` is passed to Comm::exchange, and not
  // used by a native reduction. If `with_local` is true, the launch includes this rank's own sum, if there is one, and
  // has_local() becomes false.
  void launch(Span scratch, bool with_local);
  // Makes the current stream wait until the exchange no longer uses the packed gradients. Only for a bucket that is
  // InFlight.
  void await_exchange();
  // InFlight -> Draining. Adds the sum over ranks to the reduced gradients. The first sum of a step overwrites them
  // instead.
  void finish();
  // InFlight -> Crossing. Writes the sum over this replica's ranks to `out`, which has shard_numel fp32 elements.
  void sum_in_replica(const at::Tensor& out);
  // Crossing -> Draining if the bucket has a buffer of its own, else Crossing -> Idle. `sum` is the sum over all
  // replicas, or this rank's part of it. Adds `sum` to the reduced gradients. The first sum of a step overwrites them
  // instead.
  void take_sum(const at::Tensor& sum);
  // Draining -> Idle, for a bucket that has a buffer of its own. Waits until no peer reads the buffer.
  void drain();
  // A buffer that the ring lent and peers may still read.
  class Lent;
  // Gives away the buffer of a bucket that borrows from a ring, so that the next gradients take another buffer. A
  // Draining bucket becomes Idle. A Crossing bucket stays Crossing.
  Lent hand_over();

  // Call it after a backward pass (see GradientCounts).
  void end_backward() { counts_.end_backward(); }
  // Drops all gradients since the last step, and leaves the expected numbers of gradients as they are. Not allowed
  // while in flight. Returns the slot that the bucket was filling, or null.
  SlotRing::Slot* discard();
  // Starts to gather the ranks' parts of the reduced gradients, in place. Only for a group that every rank updates
  // whole. Call it before the optimizer's step.
  std::unique_ptr<Work> gather_reduced();
  // Call it after the optimizer's step. The next sum then overwrites the reduced gradients.
  void end_step();

  // The reduced gradients that this rank's optimizer reads.
  const ReducedGradients& reduced() const { return reduced_; }
  // Replaces this rank's elements of parameter `index` with `values`, which has as many elements. The bucket must be
  // reduced, and neither Filling nor in flight.
  void replace(size_t index, const at::Tensor& values);
  // Drops the gradients that parameter `index` got since the last step. Call it before the next pass adds some. Throws
  // StateError if the bucket has reduced gradients and is Filling or in flight again, except on the CPU with reduced
  // gradients in memory.
  void drop(size_t index);
  // Returns whether parameter `index` got a gradient on this rank since the last step.
  bool has_grad(size_t index) const { return has_grad_.at(index); }

 private:
  struct Idle {};
  struct Filling {
    at::Tensor buffer;
    SlotRing::Slot* slot;
    std::vector<bool> filled;
    std::vector<math::Packed> waiting = {};  // small gradients that a device will pack together
    std::deque<Temporary> counted = {};      // memory of the waiting gradients, counted in the ledger
    int64_t waiting_bytes = 0;
  };
  struct InFlight {
    at::Tensor buffer;
    SlotRing::Slot* slot;
    std::unique_ptr<Exchange> exchange;  // set for a canonical reduction
    std::unique_ptr<Work> work;          // set for a native reduction
  };
  struct Draining {
    SlotRing::Slot* slot;
    std::unique_ptr<Exchange> exchange;
  };
  struct Crossing : Draining {};

  math::Packed placed(size_t index, const at::Tensor& grad) const;
  bool lets_wait(const Filling& filling, size_t index, const at::Tensor& grad) const;
  void pack_waiting(Filling& filling);
  StreamUses& uses(SlotRing::Slot* slot) { return slot ? slot->uses() : uses_; }
  std::vector<const void*> arrived_pieces(InFlight& in_flight) const;
  DType dtype_of_pieces(const InFlight& in_flight) const;

  const UnitLayout& unit_;
  const FlatGroup& group_;
  GroupPlacement place_;
  const ReduceOptions& options_;
  Comm& comm_;
  at::Tensor full_;  // undefined if a ring lends it
  StreamUses uses_;  // of full_; a slot has its own
  GradientCounts counts_;
  OwnSum own_sum_;
  ReducedGradients reduced_;
  std::vector<bool> has_grad_;  // for each parameter: whether it got a gradient since the last step
  std::variant<Idle, Filling, InFlight, Crossing, Draining> state_;
};

class GradBucket::Lent {
 public:
  Lent(SlotRing::Slot* slot, std::unique_ptr<Exchange> exchange) : slot_(slot), exchange_(std::move(exchange)) {}
  // Waits until no peer reads the buffer. Returns the slot, which may then be used again.
  SlotRing::Slot* drain();

 private:
  SlotRing::Slot* slot_;
  std::unique_ptr<Exchange> exchange_;  // null after a native reduction, which has already waited
};

}  // namespace zeroshard

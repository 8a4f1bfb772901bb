#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/write_hold.h"
#include "comm/comm.h"
#include "device/exact_sum.h"
#include "device/flat_buffer.h"
#include "device/math.h"
#include "device/slot_ring.h"
#include "device/streams.h"
#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "reduce/gradient_exit.h"
#include "store/array.h"

namespace zeroshard {

// Options that all buckets of a run share.
struct ReduceOptions {
  at::Device device = at::kCPU;
  int rank = 0;              // index among the ranks that shard one copy of the states; set by the Reducer
  float pack_scale = 1;      // factor before the sum over ranks
  float sum_scale = 1;       // factor after the sum over ranks
  bool native = false;       // true: use the transport's own reduce-scatter, if it has one; false: the canonical order
  Ledger* ledger = nullptr;  // set by the Reducer
  GradientExit* exit = nullptr;             // null if reduced gradients stay on the device; set by the Reducer
  WriteHold::WhileWaiting while_read = {};  // called while new gradients wait because GradBucket::read() is held
};

// Takes the gradients of one trained group of a unit from autograd, and reduces them over ranks to the elements that
// this rank updates.
//
// The states are Idle -> begin() -> Filling -> launch() -> InFlight -> finish() -> Draining (peers may still read the
// packed gradients) -> Idle. With several replicas, finish() is replaced by sum_in_replica() -> Crossing (the sum is
// added over replicas) -> take_sum(). Gradients are packed in a buffer. The bucket owns this buffer for the whole run
// if its placement keeps packed gradients. Otherwise it borrows the buffer from a ring.
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
  // Adds a gradient under no_sync to this rank's own sum, not to the packed gradients. The next launch with
  // `with_local` adds the sum to the packed gradients. Allowed in any state. The first call allocates the memory of the
  // sum, which `ledger` counts.
  void add_local(size_t index, const at::Tensor& grad, Ledger& ledger);
  // Adds a gradient that comes while the bucket is in flight to this rank's own sum. Unlike add_local(), counts it
  // among the parameter's gradients of the pass.
  void add_late(size_t index, const at::Tensor& grad, Ledger& ledger);
  // Returns whether this rank's own sum waits for a launch.
  bool has_local() const { return local_used_; }
  // Returns whether every parameter has at least as many gradients in this backward pass as are expected (see
  // end_backward()). In the first pass, one is expected.
  bool is_complete() const { return missing_ == 0; }

  // Filling -> InFlight. A parameter without a gradient counts as zero. `scratch` is passed to Comm::exchange. If
  // `with_local` is true, the launch includes this rank's own sum, if there is one, and has_local() becomes false.
  void launch(Span scratch, bool with_local);
  // Makes the current stream wait until the exchange no longer uses the packed gradients. Only for a bucket that is
  // InFlight.
  void await_exchange();
  // InFlight -> Draining. Adds the sum over ranks to the reduced gradients. If it is the first sum of the step,
  // overwrites them.
  void finish();
  // InFlight -> Crossing. Writes the sum over this replica's ranks to `out`, which has shard_numel fp32 elements.
  void sum_in_replica(const at::Tensor& out);
  // Crossing -> Draining if the bucket owns its buffer, else Crossing -> Idle. `sum` is the sum over all replicas, or
  // this rank's part of it. Adds it to the reduced gradients. If it is the first sum of the step, overwrites them.
  void take_sum(const at::Tensor& sum);
  // Draining -> Idle, for a bucket that owns its buffer. Waits until no peer reads the buffer.
  void drain();
  // A buffer that the ring lent and peers may still read.
  class Lent;
  // For a bucket that borrows its buffer from a ring: gives the buffer away, so that the next gradients take another
  // one. A bucket in state Draining is Idle at once. A bucket in state Crossing stays in that state.
  Lent hand_over();

  // Call it after a backward pass. The next passes are then expected to bring as many gradients of each parameter as
  // this one. A parameter without gradients in this pass keeps its expected number.
  void end_backward();
  // Drops all gradients since the last step, and leaves the expected numbers of gradients as they are. Not allowed
  // while in flight. Returns the slot that the bucket was filling, or null.
  SlotRing::Slot* discard();
  // For a group that every rank updates whole: starts to gather the ranks' parts of the reduced gradients, in place.
  // Call it before the optimizer's step.
  std::unique_ptr<Work> gather_reduced();
  // Call it after the optimizer's step. The next sum then overwrites the reduced gradients.
  void end_step();

  // Returns the reduced gradients that this rank's optimizer reads: this rank's part, or all. If they are copied to the
  // host, first waits until they have arrived there.
  Array& reduced() const;
  // Returns reduced() as a tensor. It is undefined if the gradients are in files.
  at::Tensor grads() const;
  // For offloaded gradients: as long as the result exists, new reduced gradients wait before they overwrite the present
  // ones.
  WriteHold::Reading read() const { return hold_->read(); }
  // Returns the reduced gradients of `range`, as a copy if they are in files.
  at::Tensor part(Range range) const { return reduced().part(range); }
  // Returns a view of the reduced gradients of this rank's part. They must be in memory.
  at::Tensor shard() const;
  // Returns whether reduced() has gradients of the current step.
  bool is_reduced() const { return reduced_; }
  // Replaces this rank's elements of parameter `index` with `values`, which has as many elements. The bucket must be
  // reduced, and neither Filling nor in flight.
  void replace(size_t index, const at::Tensor& values);
  // Drops the gradients that parameter `index` got since the last step. Call it before the next pass adds some. Throws
  // StateError if the bucket already has reduced gradients, which are on a device or in files, and is Filling or in
  // flight again.
  void drop(size_t index);
  // Returns whether reduced gradients are copied from the device to the host or to files. If so, GradientExit has their
  // sums of squares.
  bool leaves() const { return options_.exit != nullptr; }
  // Returns the sum of squares of this rank's part of the reduced gradients. Only on the CPU. It is zero before the
  // first finish() or take_sum() of the step.
  const ExactSum& squares() const { return squares_; }
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

  void count(size_t index);
  math::Packed placed(size_t index, const at::Tensor& grad) const;
  bool lets_wait(const Filling& filling, size_t index, const at::Tensor& grad) const;
  void pack_waiting(Filling& filling);
  StreamUses& uses(SlotRing::Slot* slot) { return slot ? slot->uses() : uses_; }
  std::vector<const void*> arrived_pieces(InFlight& in_flight) const;
  DType dtype_of_pieces(const InFlight& in_flight) const;
  void take(std::span<const void* const> pieces, DType dtype, const at::Tensor& elsewhere);
  at::Tensor sum_elsewhere();
  Range mine() const { return group_.layout.part(options_.rank); }
  Range owned(size_t index) const { return group_.layout.owned(index, options_.rank); }
  // Returns the positions of this rank's part in grads_.
  Range shard_range() const;
  void end_exit();
  ExactSum* squares_here() { return options_.device.is_cpu() ? &squares_ : nullptr; }

  const UnitLayout& unit_;
  const FlatGroup& group_;
  GroupPlacement place_;
  const ReduceOptions& options_;
  Comm& comm_;
  at::Tensor full_;  // undefined if a ring lends it
  std::unique_ptr<Array> grads_;
  std::unique_ptr<WriteHold> hold_;            // protects grads_ from writes
  size_t number_ = 0;                          // number of this bucket at the exit
  mutable std::optional<c10::Event> arrived_;  // end of the last copy of reduced gradients to the host
  at::Tensor kept_;   // an earlier sum of the step, while a second reduction packs gradients in its memory
  FlatBuffer local_;  // this rank's own sum under no_sync, in the gradient dtype; allocated at first use
  bool local_used_ = false;
  StreamUses uses_, local_uses_;  // uses of full_ and of local_; a slot has its own
  bool reduced_ = false;          // grads_ holds gradients of this step
  std::vector<int> expected_, fired_;
  int missing_ = 0;
  std::vector<bool> has_grad_;
  ExactSum squares_;
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

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

// What all buckets of a run share.
struct ReduceOptions {
  at::Device device = at::kCPU;
  float pack_scale = 1;          // applied before the sum over ranks ...
  float sum_scale = 1;           // ... and after it
  bool native = false;           // the transport's own reduce-scatter, if it has one, not the canonical order
  Ledger* ledger = nullptr;      // set by the Reducer
  GradientExit* exit = nullptr;  // set by the Reducer, where reduced gradients lie on the host beside a device
  WriteHold::WhileWaiting while_read = {};  // called while new gradients wait for GradBucket::read()
};

// The gradients of one trainable group of a unit, on their way from autograd to this rank's shard.
//
// States: Idle -> add() -> Filling -> launch() -> InFlight -> finish() -> Draining (peers may still read) -> Idle.
// If its placement keeps packed gradients, the bucket owns its filling buffer for the whole run; otherwise a ring lends
// one.
class GradBucket {
 public:
  // `full` holds padded_numel packed elements (undefined when a ring lends them), `grads` the reduced gradients that
  // this rank updates with: its shard, or all padded_numel elements. Memory of both outlives the bucket.
  GradBucket(const UnitLayout& unit, size_t group, const GroupPlacement& place, const ReduceOptions& options,
             Comm& comm, at::Tensor full, std::unique_ptr<Array> grads);

  const FlatGroup& group() const { return group_; }
  DType wire_dtype() const { return place_.wire_dtype; }
  bool updates_whole() const { return place_.updates_whole(); }
  int64_t slot_bytes() const;
  bool needs_slot() const { return !full_.defined(); }

  bool is_idle() const { return std::holds_alternative<Idle>(state_); }
  bool is_filling() const { return std::holds_alternative<Filling>(state_); }
  bool is_in_flight() const { return std::holds_alternative<InFlight>(state_); }
  bool is_draining() const { return std::holds_alternative<Draining>(state_); }

  // Idle -> Filling. `slot` is null unless needs_slot().
  void begin(SlotRing::Slot* slot);
  // Packs the gradient of parameter `index` of the group; adds it when there is one already.
  void add(size_t index, const at::Tensor& grad);
  // Packs the gradients that wait, if there are any, before more of them come for another bucket.
  void pack();
  // Adds to this rank's own sum instead, which joins the next launch that takes it (no_sync). Any state.
  void add_local(size_t index, const at::Tensor& grad, Ledger& ledger);
  // Whether that sum waits for a launch.
  bool has_local() const { return local_used_; }
  // Every parameter has as many gradients as in earlier backward passes.
  bool is_complete() const { return missing_ == 0; }

  // Filling -> InFlight. Parameters without a gradient count as zero. `scratch`: see Comm::exchange. `with_local`: this
  // rank's own sum goes, too, if there is one.
  void launch(Span scratch, bool with_local);
  // While in flight: the current stream waits until the memory is not used for that any more.
  void await_exchange();
  // InFlight -> Draining. Adds to the reduced gradients, or writes them when they are the first of the step.
  void finish();
  // Draining -> Idle, where the bucket owns its buffer.
  void drain();
  // A buffer that the ring lent and peers may still read.
  class Lent;
  // Draining -> Idle at once, where the ring lends buffers: the next gradients take another one.
  Lent hand_over();

  // After a backward pass: learns how often each parameter gets a gradient.
  void end_backward();
  // Drops all gradients since the last step, and learns nothing. Not while in flight. Returns the slot that the bucket
  // was filling, if any.
  SlotRing::Slot* discard();
  // Where every rank updates everything, before the optimizer: gathers the reduced gradients of all ranks in place.
  std::unique_ptr<Work> gather_reduced();
  // After the optimizer step: the next gradients overwrite.
  void end_step();

  // The reduced gradients that the optimizer of this rank reads: its shard, or all of them. Where they lie on the host,
  // it waits until they have arrived there.
  Array& reduced() const;
  // In memory; undefined where they lie in files.
  at::Tensor grads() const;
  // Where they lie on the host beside a device: as long as the result lives, the next gradients wait.
  WriteHold::Reading read() const { return hold_->read(); }
  // Those of `range` of them: a copy of what lies in files.
  at::Tensor part(Range range) const { return reduced().part(range); }
  // Those of this rank's shard, in memory.
  at::Tensor shard() const;
  // Whether grads() has gradients of the current step.
  bool is_reduced() const { return reduced_; }
  // The caller's own values for this rank's elements of parameter `index`, in a bucket that is reduced.
  void replace(size_t index, const at::Tensor& values);
  // Drops the gradients of parameter `index` since the last step, before the next pass has some. Throws StateError
  // where they lie on a device or in files, and a reduction is under way.
  void drop(size_t index);
  // Whether they are brought to the host as they are reduced. Then GradientExit has their squares.
  bool leaves() const { return options_.exit != nullptr; }
  // On the CPU: squares of this rank's shard; valid after finish().
  const ExactSum& squares() const { return squares_; }
  // Whether parameter `index` got a gradient on this rank since the last step.
  bool has_grad(size_t index) const { return has_grad_.at(index); }

 private:
  struct Idle {};
  struct Filling {
    at::Tensor buffer;
    SlotRing::Slot* slot;
    std::vector<bool> filled;
    std::vector<math::Packed> waiting = {};  // small gradients that are to be packed together, on a device
    std::deque<Temporary> counted = {};      // their memory
    int64_t waiting_bytes = 0;
  };
  struct InFlight {
    at::Tensor buffer;
    SlotRing::Slot* slot;
    std::unique_ptr<Exchange> exchange;  // canonical ...
    std::unique_ptr<Work> work;          // ... or native
  };
  struct Draining {
    SlotRing::Slot* slot;
    std::unique_ptr<Exchange> exchange;
  };

  math::Packed placed(size_t index, const at::Tensor& grad) const;
  bool lets_wait(const Filling& filling, size_t index, const at::Tensor& grad) const;
  void pack_waiting(Filling& filling);
  StreamUses& uses(SlotRing::Slot* slot) { return slot ? slot->uses() : uses_; }
  std::vector<const void*> arrived_pieces(InFlight& in_flight) const;
  void sum(InFlight& in_flight);
  // This rank's shard, as positions in grads_.
  Range shard_range() const;
  void end_exit();
  ExactSum* squares_here() { return options_.device.is_cpu() ? &squares_ : nullptr; }

  const UnitLayout& unit_;
  const FlatGroup& group_;
  GroupPlacement place_;
  const ReduceOptions& options_;
  Comm& comm_;
  at::Tensor full_;  // undefined: a ring lends it
  std::unique_ptr<Array> grads_;
  std::unique_ptr<WriteHold> hold_;            // of grads_
  size_t number_ = 0;                          // at the exit
  mutable std::optional<c10::Event> arrived_;  // on the host, where the last gradients went
  at::Tensor kept_;   // the result of an earlier reduction, while a second one of the step uses its place
  FlatBuffer local_;  // this rank's own sum under no_sync, in the gradient dtype; allocated when first used
  bool local_used_ = false;
  StreamUses uses_, local_uses_;  // of full_ and of local_; a slot has its own
  bool reduced_ = false;          // grads_ holds gradients of this step
  std::vector<int> expected_, fired_;
  int missing_ = 0;
  std::vector<bool> has_grad_;
  ExactSum squares_;
  std::variant<Idle, Filling, InFlight, Draining> state_;
};

class GradBucket::Lent {
 public:
  Lent(SlotRing::Slot* slot, std::unique_ptr<Exchange> exchange) : slot_(slot), exchange_(std::move(exchange)) {}
  // Waits until no peer reads it. Returns the slot, which may be used again.
  SlotRing::Slot* drain();

 private:
  SlotRing::Slot* slot_;
  std::unique_ptr<Exchange> exchange_;  // null where the reduction has waited
};

}  // namespace zeroshard

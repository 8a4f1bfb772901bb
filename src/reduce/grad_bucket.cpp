#include "reduce/grad_bucket.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "device/cut.h"
#include "device/dtype.h"
#include "device/math.h"
#include "device/named_range.h"
#include "plan/buffer_sizes.h"
#include "plan/device_memory.h"

namespace zeroshard {

GradBucket::GradBucket(const UnitLayout& unit, size_t group, const GroupPlacement& place, const ReduceOptions& options,
                       Comm& comm, at::Tensor full, std::unique_ptr<Array> grads)
    : unit_(unit),
      group_(unit.groups.at(group)),
      place_(place),
      options_(options),
      comm_(comm),
      full_(std::move(full)),
      uses_(options.device),
      counts_(group_.params.size()),
      own_sum_(group_, place.grad_dtype, options.device),
      reduced_(group_, place.updates_whole(), options, std::move(grads)),
      has_grad_(group_.params.size(), false) {
  if (!full_.defined()) return;
  uses_.share();  // because the current stream zeroes full_
  uses_.end();
}

int64_t GradBucket::slot_bytes() const {
  return wire_bytes(group_, place_);
}

void GradBucket::begin(SlotRing::Slot* slot) {
  ZS_ASSERT(is_idle() && bool(slot) == needs_slot(), "unit ", unit_.name);
  const at::ScalarType wire = to_scalar_type(place_.wire_dtype);
  at::Tensor buffer = slot ? slot->buffer().view(wire, 0, group_.layout.padded_numel()) : full_;
  if (reduced_.are_current() && place_.reduces_in_place()) {
    // This is a second reduction in one step, as for a late gradient. The new gradients are packed over the result of
    // the first reduction, so keep() first copies that result.
    uses(slot).take();
    reduced_.keep();
  } else {
    uses(slot).share();  // not take(), because add(), pack() and launch() wait before they write
  }
  state_ = Filling{std::move(buffer), slot, std::vector<bool>(group_.params.size(), false)};
}

void GradBucket::add(size_t index, const at::Tensor& grad) {
  Filling& filling = std::get<Filling>(state_);
  if (lets_wait(filling, index, grad)) {
    uses(filling.slot).share();  // for the current stream, which computes the gradient
    const int64_t bytes = align_up(int64_t(grad.nbytes()), kDeviceBlock);
    filling.counted.emplace_back(*options_.ledger, bytes);
    filling.waiting.push_back(placed(index, grad));
    filling.waiting_bytes += bytes;
  } else {
    uses(filling.slot).take();
    if (filling.filled[index]) pack_waiting(filling);
    math::pack(placed(index, grad), filling.buffer, options_.pack_scale, filling.filled[index]);
  }
  filling.filled[index] = true;
  has_grad_[index] = true;
  counts_.add(index);
}

math::Packed GradBucket::placed(size_t index, const at::Tensor& grad) const {
  return {grad, group_.layout.param(index).begin};
}

// Returns whether this gradient waits, so that one kernel packs it together with others. Waiting gradients keep their
// memory, so they have at most kWaitingBytes together. A gradient that would exceed this limit does not wait. Only the
// first gradient of a parameter may wait, and only if math::packs_together() allows it and it has the dtype of the
// waiting gradients.
bool GradBucket::lets_wait(const Filling& filling, size_t index, const at::Tensor& grad) const {
  const int64_t bytes = align_up(int64_t(grad.nbytes()), kDeviceBlock);
  if (filling.filled[index] || filling.waiting_bytes + bytes > kWaitingBytes) return false;
  const bool same = filling.waiting.empty() || filling.waiting[0].in.scalar_type() == grad.scalar_type();
  return same && math::packs_together(grad, filling.buffer);
}

void GradBucket::pack() {
  Filling* const filling = std::get_if<Filling>(&state_);
  if (!filling || filling->waiting.empty()) return;
  uses(filling->slot).take();
  pack_waiting(*filling);
}

void GradBucket::pack_waiting(Filling& filling) {
  for (const math::Packed& waiting : filling.waiting) outlive_current_stream(waiting.in);
  math::pack_all(filling.waiting, filling.buffer, options_.pack_scale);
  filling.waiting.clear();
  filling.counted.clear();
  filling.waiting_bytes = 0;
}

void GradBucket::add_local(size_t index, const at::Tensor& grad) {
  own_sum_.add(placed(index, grad), options_.pack_scale, *options_.ledger);
  has_grad_[index] = true;
}

void GradBucket::add_late(size_t index, const at::Tensor& grad) {
  add_local(index, grad);
  counts_.add(index);
}

void GradBucket::launch(Span scratch, bool with_local) {
  const NamedRange named("reduce", unit_.name);
  Filling& filling = std::get<Filling>(state_);
  const int64_t padded = group_.layout.padded_numel();
  uses(filling.slot).take();
  pack_waiting(filling);
  for (size_t i = 0; i < group_.params.size(); ++i) {
    const Range range = group_.layout.param(i), padding = group_.layout.padding_behind(i);
    if (!filling.filled[i]) cut(filling.buffer, range).zero_();
    // A buffer of a ring must get zeros as padding, because units with other layouts have used it. A bucket's own
    // buffer needs none, because nobody writes to its padding.
    if (filling.slot && padding.size() > 0) cut(filling.buffer, padding).zero_();
  }
  if (with_local) own_sum_.move_to(filling.buffer);
  const Span span{filling.buffer.data_ptr(), padded, place_.wire_dtype};
  InFlight in_flight{filling.buffer, filling.slot, nullptr, nullptr};
  if (options_.native) {
    const int64_t numel = group_.layout.shard_numel();
    const Span out{static_cast<char*>(span.data) + comm_.rank() * numel * element_size(span.dtype), numel, span.dtype};
    in_flight.work = comm_.reduce_scatter(out, span, unit_.name);
  } else {
    in_flight.exchange = comm_.exchange(span, scratch, unit_.name);
  }
  state_ = std::move(in_flight);
}

// Waits for the pieces of this rank's shard, and returns pointers to them. After a native reduce-scatter, one piece has
// the sum.
std::vector<const void*> GradBucket::arrived_pieces(InFlight& in_flight) const {
  if (in_flight.exchange) {
    in_flight.exchange->wait();
    const std::span<const void* const> pieces = in_flight.exchange->pieces();
    return {pieces.begin(), pieces.end()};
  }
  in_flight.work->wait();
  return {cut(in_flight.buffer, group_.layout.shard(comm_.rank())).const_data_ptr()};
}

DType GradBucket::dtype_of_pieces(const InFlight& in_flight) const {
  return in_flight.exchange ? in_flight.exchange->dtype() : place_.wire_dtype;
}

void GradBucket::await_exchange() {
  InFlight& in_flight = std::get<InFlight>(state_);
  in_flight.exchange ? in_flight.exchange->drain() : in_flight.work->drain();
}

void GradBucket::finish() {
  const NamedRange named("wait for the reduction of", unit_.name);
  InFlight& in_flight = std::get<InFlight>(state_);
  const at::Tensor elsewhere = reduced_.begin_sum();
  reduced_.add(arrived_pieces(in_flight), dtype_of_pieces(in_flight), elsewhere);
  if (in_flight.exchange) in_flight.exchange->release();
  uses(in_flight.slot).end();
  state_ = Draining{in_flight.slot, std::move(in_flight.exchange)};
}

void GradBucket::sum_in_replica(const at::Tensor& out) {
  const NamedRange named("wait for the reduction of", unit_.name);
  InFlight& in_flight = std::get<InFlight>(state_);
  math::sum_in_order(arrived_pieces(in_flight), to_scalar_type(dtype_of_pieces(in_flight)), 1, out,
                     /*accumulate=*/false);
  if (in_flight.exchange) in_flight.exchange->release();
  uses(in_flight.slot).end();
  state_ = Crossing{{in_flight.slot, std::move(in_flight.exchange)}};
}

void GradBucket::take_sum(const at::Tensor& sum) {
  const std::array<const void*, 1> pieces = {sum.const_data_ptr()};
  if (!needs_slot()) uses_.take();
  reduced_.add(pieces, DType::kFloat32, reduced_.begin_sum());
  if (!needs_slot()) uses_.end();
  Crossing& crossing = std::get<Crossing>(state_);
  if (needs_slot()) {
    state_ = Idle{};
  } else {
    state_ = Draining{crossing.slot, std::move(crossing.exchange)};
  }
}

void GradBucket::drain() {
  ZS_ASSERT(!needs_slot(), "unit ", unit_.name);
  const Draining& draining = std::get<Draining>(state_);
  if (draining.exchange) draining.exchange->drain();
  state_ = Idle{};
}

GradBucket::Lent GradBucket::hand_over() {
  ZS_ASSERT(needs_slot(), "unit ", unit_.name);
  Crossing* const crossing = std::get_if<Crossing>(&state_);
  Draining& draining = crossing != nullptr ? *crossing : std::get<Draining>(state_);
  Lent lent(draining.slot, std::move(draining.exchange));
  if (crossing == nullptr) state_ = Idle{};
  return lent;
}

SlotRing::Slot* GradBucket::Lent::drain() {
  if (exchange_) exchange_->drain();
  return slot_;
}

SlotRing::Slot* GradBucket::discard() {
  ZS_ASSERT(!is_in_flight(), "unit ", unit_.name);
  SlotRing::Slot* slot = nullptr;
  if (Filling* const filling = std::get_if<Filling>(&state_)) {
    slot = filling->slot;
    state_ = Idle{};
  }
  own_sum_.discard();
  counts_.discard();
  reduced_.forget_kept();
  end_step();
  return slot;
}

std::unique_ptr<Work> GradBucket::gather_reduced() {
  const at::Tensor all = reduced_.tensor();
  const Span out{all.data_ptr(), all.numel(), to_dtype(all.scalar_type())};
  const at::Tensor mine = reduced_.part();
  return comm_.all_gather(out, {mine.const_data_ptr(), mine.numel(), out.dtype}, unit_.name);
}

void GradBucket::replace(size_t index, const at::Tensor& values) {
  ZS_ASSERT(reduced_.are_current() && !is_in_flight() && !is_filling(), "unit ", unit_.name);
  has_grad_[index] = true;
  reduced_.replace(index, values);
}

void GradBucket::drop(size_t index) {
  const bool is_under_way = is_filling() || is_in_flight();  // perhaps launched without gradients of this pass
  if (reduced_.are_current() && is_under_way) {
    if (!reduced_.zero_under_way(index))
      throw StateError(concat(
          "a gradient of unit '", unit_.name,
          "' was dropped (param.grad = None) after a torch.autograd.grad() or a forward of another loss had begun "
          "to use the unit. Call engine.zero_grad() instead"));
  } else if (reduced_.are_current()) {
    const int64_t owned = group_.layout.owned(index, options_.rank).size();
    replace(index, at::zeros({owned}, at::TensorOptions(at::kFloat).device(options_.device)));
  }
  own_sum_.drop(index);
  has_grad_[index] = false;
}

void GradBucket::end_step() {
  std::fill(has_grad_.begin(), has_grad_.end(), false);
  reduced_.end_step();
}

}  // namespace zeroshard

#include "reduce/grad_bucket.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "device/dtype.h"
#include "device/math.h"
#include "device/named_range.h"
#include "plan/device_memory.h"
#include "plan/state_rules.h"

namespace zeroshard {

GradBucket::GradBucket(const UnitLayout& unit, size_t group, const GroupPlacement& place, const ReduceOptions& options,
                       Comm& comm, at::Tensor full, std::unique_ptr<Array> grads)
    : unit_(unit),
      group_(unit.groups.at(group)),
      place_(place),
      options_(options),
      comm_(comm),
      full_(std::move(full)),
      grads_(std::move(grads)),
      hold_(std::make_unique<WriteHold>(options.while_read)),
      uses_(options.device),
      local_uses_(options.device),
      expected_(group_.params.size(), 1),
      fired_(group_.params.size(), 0),
      missing_(int(group_.params.size())),
      has_grad_(group_.params.size(), false) {
  if (options.exit) number_ = options.exit->add_bucket();
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
  if (reduced_ && place_.reduces_in_place()) {
    // This is a second reduction in one step, as for a late gradient. The gradients are packed over the result of the
    // first reduction, so that result is first copied to kept_.
    uses(slot).take();
    kept_ = shard().clone();
  } else {
    uses(slot).share();  // no need to wait: add(), pack() and launch() wait before they write
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
  count(index);
}

math::Packed GradBucket::placed(size_t index, const at::Tensor& grad) const {
  return {grad, group_.layout.param(index).begin};
}

// Returns whether this gradient waits, so that one kernel packs it together with others. Waiting gradients keep their
// memory, so they have at most kWaitingBytes together, and a gradient that exceeds this is packed at once. The first
// gradient of a parameter may wait. Later ones are added to it at once.
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

void GradBucket::add_local(size_t index, const at::Tensor& grad, Ledger& ledger) {
  const at::ScalarType type = to_scalar_type(place_.grad_dtype);
  const int64_t numel = group_.layout.padded_numel();
  if (!local_)
    local_ = FlatBuffer(numel * element_size(place_.grad_dtype), options_.device, ledger, Category::kGradients);
  const at::Tensor local = local_.view(type, 0, numel);
  local_uses_.take();
  if (!std::exchange(local_used_, true)) local.zero_();
  math::pack(placed(index, grad), local, options_.pack_scale, /*add=*/true);
  has_grad_[index] = true;
}

void GradBucket::add_late(size_t index, const at::Tensor& grad, Ledger& ledger) {
  add_local(index, grad, ledger);
  count(index);
}

// Counts a gradient of parameter `index` in this pass.
void GradBucket::count(size_t index) {
  if (++fired_[index] == expected_[index]) --missing_;
}

void GradBucket::launch(Span scratch, bool with_local) {
  const NamedRange named("reduce", unit_.name);
  Filling& filling = std::get<Filling>(state_);
  const int64_t padded = group_.layout.padded_numel();
  uses(filling.slot).take();
  pack_waiting(filling);
  for (size_t i = 0; i < group_.params.size(); ++i) {
    const Range range = group_.layout.param(i), padding = group_.layout.padding_behind(i);
    if (!filling.filled[i]) filling.buffer.slice(0, range.begin, range.end).zero_();
    // A buffer of a ring must get zeros as padding, because units with other layouts have used it. A bucket's own
    // buffer needs none, because nobody writes to its padding.
    if (filling.slot && padding.size() > 0) filling.buffer.slice(0, padding.begin, padding.end).zero_();
  }
  if (local_used_ && with_local) {
    local_uses_.take();
    math::pack({local_.view(to_scalar_type(place_.grad_dtype), 0, padded)}, filling.buffer, 1, /*add=*/true);
    local_used_ = false;
  }
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

Array& GradBucket::reduced() const {
  if (arrived_) arrived_->synchronize();
  arrived_.reset();
  return *grads_;
}

at::Tensor GradBucket::grads() const {
  const StateTensors* const memory = reduced().in_memory();
  return memory != nullptr ? memory->at(0) : at::Tensor();
}

Range GradBucket::shard_range() const {
  return place_.updates_whole() ? mine() : Range{0, group_.layout.part_numel()};
}

at::Tensor GradBucket::shard() const {
  return reduced().view(shard_range());
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
  const Range mine = group_.layout.shard(comm_.rank());
  return {in_flight.buffer.slice(0, mine.begin, mine.end).const_data_ptr()};
}

DType GradBucket::dtype_of_pieces(const InFlight& in_flight) const {
  return in_flight.exchange ? in_flight.exchange->dtype() : place_.wire_dtype;
}

// Adds the sum of the pieces to the reduced gradients of this rank's part. If it is the first sum of the step,
// overwrites them. The sum is formed in `elsewhere` if that is defined, and is then copied to grads_. Otherwise it is
// formed in grads_, in several parts if grads_ is in files.
void GradBucket::take(std::span<const void* const> pieces, DType dtype, const at::Tensor& elsewhere) {
  squares_ = ExactSum();
  const int64_t first = shard_range().begin;
  const auto add = [&](Range part, const at::Tensor& out) {
    std::vector<const void*> parts;
    for (const void* const piece : pieces)
      parts.push_back(static_cast<const char*>(piece) + (part.begin - first) * element_size(dtype));
    math::sum_in_order(parts, to_scalar_type(dtype), options_.sum_scale, out, reduced_, squares_here());
  };
  if (elsewhere.defined()) {
    add(shard_range(), elsewhere);
  } else {
    grads_->lend(shard_range(), reduced_ ? Array::Access::kModify : Array::Access::kOverwrite, add);
  }
  if (kept_.defined()) {
    shard().copy_(kept_);
    outlive_current_stream(std::exchange(kept_, at::Tensor()));
  }
  if (options_.exit) end_exit();
  reduced_ = true;
}

// Returns the memory in which take() forms the sum if that is not grads_. It is a buffer of the exit, or kept_. Returns
// an undefined tensor if the sum is formed in grads_.
at::Tensor GradBucket::sum_elsewhere() {
  return options_.exit ? options_.exit->begin(*grads_, reduced_) : kept_;
}

void GradBucket::end_exit() {
  hold_->await_readers();
  arrived_ = options_.exit->end(*grads_, number_);
}

void GradBucket::await_exchange() {
  InFlight& in_flight = std::get<InFlight>(state_);
  in_flight.exchange ? in_flight.exchange->drain() : in_flight.work->drain();
}

void GradBucket::finish() {
  const NamedRange named("wait for the reduction of", unit_.name);
  InFlight& in_flight = std::get<InFlight>(state_);
  const at::Tensor elsewhere = sum_elsewhere();
  take(arrived_pieces(in_flight), dtype_of_pieces(in_flight), elsewhere);
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
  take(pieces, DType::kFloat32, sum_elsewhere());
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

void GradBucket::end_backward() {
  for (size_t i = 0; i < fired_.size(); ++i) {
    if (fired_[i] > 0) expected_[i] = fired_[i];
  }
  std::fill(fired_.begin(), fired_.end(), 0);
  missing_ = int(fired_.size());
}

SlotRing::Slot* GradBucket::discard() {
  ZS_ASSERT(!is_in_flight(), "unit ", unit_.name);
  SlotRing::Slot* slot = nullptr;
  if (Filling* const filling = std::get_if<Filling>(&state_)) {
    slot = filling->slot;
    state_ = Idle{};
  }
  kept_ = at::Tensor();
  local_used_ = false;
  std::fill(fired_.begin(), fired_.end(), 0);
  missing_ = int(fired_.size());
  end_step();
  return slot;
}

std::unique_ptr<Work> GradBucket::gather_reduced() {
  const at::Tensor all = grads();
  const Span out{all.data_ptr(), all.numel(), to_dtype(all.scalar_type())};
  const at::Tensor mine = shard();
  return comm_.all_gather(out, {mine.const_data_ptr(), mine.numel(), out.dtype}, unit_.name);
}

void GradBucket::replace(size_t index, const at::Tensor& values) {
  ZS_ASSERT(reduced_ && !is_in_flight() && !is_filling(), "unit ", unit_.name);
  const Range mine = this->mine(), owned = this->owned(index);
  const Range here = owned.size() > 0 ? Range{owned.begin - mine.begin, owned.end - mine.begin} : Range{};
  has_grad_[index] = true;
  if (options_.exit) {
    const at::Tensor own = options_.exit->begin(*grads_, /*has_values=*/true);
    if (here.size() > 0) own.slice(0, here.begin, here.end).copy_(values);
    return end_exit();
  }
  const int64_t first = shard_range().begin + here.begin;
  reduced().lend({first, first + here.size()}, Array::Access::kModify, [&](Range part, const at::Tensor& to) {
    to.copy_(values.slice(0, part.begin - first, part.end - first));
  });
  squares_ = ExactSum();
  ExactSum* const squares = squares_here();
  if (squares == nullptr) return;
  grads_->lend(shard_range(), Array::Access::kRead,
               [&](Range, const at::Tensor& grads) { math::add_sum_of_squares(grads, *squares); });
}

void GradBucket::drop(size_t index) {
  const bool is_under_way = is_filling() || is_in_flight();  // perhaps launched without gradients of this pass
  if (reduced_ && is_under_way) {
    if (!options_.device.is_cpu() || !grads_->in_memory())
      throw StateError(concat(
          "a gradient of unit '", unit_.name,
          "' was dropped (param.grad = None) after a torch.autograd.grad() or a forward of another loss had begun "
          "to use the unit. Call engine.zero_grad() instead"));
    const Range mine = this->mine(), owned = this->owned(index);
    const at::Tensor sum = kept_.defined() ? kept_ : shard();
    if (owned.size() > 0) sum.slice(0, owned.begin - mine.begin, owned.end - mine.begin).zero_();
  } else if (reduced_) {
    const Range owned = this->owned(index);
    replace(index, at::zeros({owned.size()}, at::TensorOptions(at::kFloat).device(options_.device)));
  }
  if (local_used_) {
    local_uses_.take();
    const Range range = group_.layout.param(index);
    local_.view(to_scalar_type(place_.grad_dtype), 0, group_.layout.padded_numel())
        .slice(0, range.begin, range.end)
        .zero_();
  }
  has_grad_[index] = false;
}

void GradBucket::end_step() {
  std::fill(has_grad_.begin(), has_grad_.end(), false);
  reduced_ = false;
  squares_ = ExactSum();
}

}  // namespace zeroshard

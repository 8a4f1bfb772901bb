#include "reduce/gradient_exit.h"

#include <algorithm>
#include <utility>

#include "device/cut.h"
#include "device/device_squares.h"
#include "plan/device_memory.h"

namespace zeroshard {
namespace {

constexpr int64_t kLimbsStride = kSquaresBytes / int64_t{sizeof(int64_t)};  // limbs per bucket
static_assert(ExactSum::kNumLimbs <= kLimbsStride);

}  // namespace

GradientExit::GradientExit(at::Device device, const RingClass& buffers, Ledger& ledger)
    : limbs_(buffers.units * kSquaresBytes, device, ledger, Category::kReduceRing),
      limbs_uses_(device),
      mover_(device,
             {.bytes = buffers.slot_bytes, .count = buffers.slots, .on_host = false, .category = Category::kReduceRing},
             ledger) {
  limbs_uses_.share();
}

at::Tensor GradientExit::begin(Array& to, bool has_values) {
  settle();
  buffer_ = &mover_.next_slot();
  filling_ = buffer_->memory.view(to.type(), 0, to.numel());
  if (has_values && to.numel() > 0) {
    const SideStream::Scope scope(mover_.stream());
    buffer_->uses.take();
    to.begin_read({0, to.numel()}, filling_.data_ptr(), mover_.device(), mover_.stream());
  }
  buffer_->uses.take();
  return filling_;
}

// Computes the bucket's sum of squares from the values in the buffer.
void GradientExit::end_sum(size_t bucket) {
  limbs_uses_.take();
  squares_into(filling_, limbs_.view(at::kLong, int64_t(bucket) * kSquaresBytes, int64_t{ExactSum::kNumLimbs}));
}

void GradientExit::settle() {
  if (!pending_) return;
  const Pending pending = *std::exchange(pending_, std::nullopt);
  const SideStream::Scope scope(mover_.stream());
  pending.buffer->uses.take();
  pending.file->lend({0, pending.file->numel()}, Array::Access::kOverwrite, [&](Range part, const at::Tensor& to) {
    mover_.move(to, cut(pending.values, part));
    mover_.wait();
  });
  pending.buffer->uses.end();
}

std::optional<c10::Event> GradientExit::end(Array& to, size_t bucket) {
  end_sum(bucket);
  const StateTensors* const host = to.in_memory();
  if (host == nullptr) {
    buffer_->uses.end();  // the copy waits for this sum, but not for later sums
    pending_ = Pending{&to, buffer_, std::exchange(filling_, at::Tensor())};
    return std::nullopt;
  }
  const SideStream::Scope scope(mover_.stream());
  buffer_->uses.take();
  mover_.move(host->at(0), std::exchange(filling_, at::Tensor()));
  buffer_->uses.end();  // the next sum in this buffer waits for this copy, but not for later copies
  return mover_.record();
}

ExactSum GradientExit::squares(const std::vector<bool>& chosen) const {
  limbs_uses_.take();
  const at::Tensor host = limbs_.view(at::kLong, 0, limbs_.bytes() / int64_t{sizeof(int64_t)}).cpu();
  ExactSum sum;
  for (size_t bucket = 0; bucket < chosen.size(); ++bucket) {
    if (!chosen[bucket]) continue;
    ExactSum squares;
    std::copy_n(host.const_data_ptr<int64_t>() + int64_t(bucket) * kLimbsStride, ExactSum::kNumLimbs,
                squares.limbs().begin());
    sum.add(squares);
  }
  return sum;
}

}  // namespace zeroshard

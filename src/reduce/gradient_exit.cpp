#include "reduce/gradient_exit.h"

#include <algorithm>
#include <utility>

#include "device/device_squares.h"
#include "device/dtype.h"
#include "device/host_copy.h"
#include "plan/device_memory.h"

namespace zeroshard {
namespace {

constexpr int64_t kLimbsStride = kSquaresBytes / int64_t{sizeof(int64_t)};  // of a bucket
static_assert(ExactSum::kNumLimbs <= kLimbsStride);

}  // namespace

GradientExit::GradientExit(at::Device device, const RingClass& buffers, Ledger& ledger)
    : device_(device),
      limbs_(buffers.units * kSquaresBytes, device, ledger, Category::kReduceRing),
      limbs_uses_(device),
      copies_(device) {
  limbs_uses_.share();
  for (int i = 0; i < buffers.slots; ++i) {
    buffers_.push_back({FlatBuffer(buffers.slot_bytes, device, ledger, Category::kReduceRing), StreamUses(device)});
    buffers_.back().uses.share();  // the stream that fills it with zeros
  }
}

GradientExit::~GradientExit() {
  try {
    copies_.record().synchronize();
  } catch (const std::exception&) {  // the device has failed, and copies nothing more
  }
}

at::Tensor GradientExit::begin(FileShard& file, bool has_values) {
  settle();
  Buffer& next = buffer();
  filling_ = next.memory.view(to_scalar_type(file.dtype()), 0, file.numel());
  if (has_values) {
    const SideStream::Scope scope(copies_);
    next.uses.take();
    file.begin_read({0, file.numel()}, filling_.data_ptr(), device_, copies_);
  }
  next.uses.take();
  return filling_;
}

at::Tensor GradientExit::begin(const at::Tensor& host, bool has_values) {
  Buffer& next = buffer();
  filling_ = next.memory.view(host.scalar_type(), 0, host.numel());
  if (has_values && host.numel() > 0) {
    const SideStream::Scope scope(copies_);
    next.uses.take();
    begin_copy_from_host(filling_.data_ptr(), host.const_data_ptr(), int64_t(host.nbytes()), device_);
  }
  next.uses.take();
  return filling_;
}

// The squares of what is in the buffer, which is done with. The next one takes its turn.
GradientExit::Buffer& GradientExit::end_buffer(size_t bucket) {
  limbs_uses_.take();
  squares_into(filling_, limbs_.view(at::kLong, int64_t(bucket) * kSquaresBytes, int64_t{ExactSum::kNumLimbs}));
  Buffer& filled = buffer();
  ++turn_;
  return filled;
}

void GradientExit::end(FileShard& file, size_t bucket) {
  Buffer& filled = end_buffer(bucket);
  filled.uses.end();  // the copy waits for this sum, and for none that comes later
  pending_ = Pending{&file, &filled, std::exchange(filling_, at::Tensor())};
}

void GradientExit::settle() {
  if (!pending_) return;
  const Pending pending = *std::exchange(pending_, std::nullopt);
  const SideStream::Scope scope(copies_);
  pending.buffer->uses.take();
  pending.file->lend({0, pending.file->numel()}, OptimizerStates::Access::kOverwrite,
                     [&](Range part, const at::Tensor& to) {
                       const at::Tensor from = pending.values.slice(0, part.begin, part.end);
                       begin_copy_to_host(to.data_ptr(), from.const_data_ptr(), int64_t(from.nbytes()), device_);
                       copies_.record().synchronize();
                     });
  pending.buffer->uses.end();
}

c10::Event GradientExit::end(const at::Tensor& host, size_t bucket) {
  Buffer& filled = end_buffer(bucket);
  const SideStream::Scope scope(copies_);
  filled.uses.take();
  if (host.numel() > 0) begin_copy_to_host(host.data_ptr(), filling_.const_data_ptr(), int64_t(host.nbytes()), device_);
  filled.uses.end();  // the next sum in this buffer waits for this copy, and for none that comes later
  filling_ = at::Tensor();
  return copies_.record();
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

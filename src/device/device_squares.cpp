#include "device/device_squares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "base/align.h"
#include "device/device_kernels.h"
#include "device/dtype.h"
#include "layout/shard_layout.h"

namespace zeroshard {
namespace {

constexpr int64_t kBlocksAtOnce = 4096;  // limits the temporary memory
static_assert((kBlockNumel & (kBlockNumel - 1)) == 0, "blocks are added by halves");

// Sums the squares of each block of some tensors, many blocks at a time.
class BlockSums {
 public:
  BlockSums(int64_t blocks, at::TensorOptions options)
      : sums_(at::empty({blocks}, options)),
        squares_(at::empty({std::min(blocks, kBlocksAtOnce), kBlockNumel}, options)) {}

  void add(const at::Tensor& flat) {
    for (int64_t begin = 0; begin < flat.numel();) {
      if (filled_ == squares_.size(0)) flush();
      const int64_t room = (squares_.size(0) - filled_) * kBlockNumel, numel = std::min(room, flat.numel() - begin);
      const int64_t blocks = ceil_div(numel, kBlockNumel);
      const at::Tensor rows = squares_.slice(0, filled_, filled_ + blocks).view({-1});
      rows.slice(0, 0, numel).copy_(flat.slice(0, begin, begin + numel));
      if (numel < rows.numel()) rows.slice(0, numel).zero_();
      filled_ += blocks;
      begin += numel;
    }
  }

  const at::Tensor& sums() {
    flush();
    return sums_;
  }

 private:
  void flush() {
    if (filled_ == 0) return;
    const at::Tensor rows = squares_.slice(0, 0, filled_);
    rows.mul_(rows);
    // Adds the second half of each row to the first, until one element is left. sum() is not used, because the order in
    // which it adds depends on the number of rows.
    for (int64_t half = kBlockNumel / 2; half > 0; half /= 2)
      rows.slice(1, 0, half).add_(rows.slice(1, half, 2 * half));
    sums_.slice(0, done_, done_ + filled_).copy_(rows.select(1, 0));
    done_ += std::exchange(filled_, 0);
  }

  at::Tensor sums_, squares_;
  int64_t filled_ = 0, done_ = 0;  // blocks in squares_, and blocks whose sum is in sums_
};

// Returns the limbs of an ExactSum to which `values`, none of them negative, were added. A double is mantissa *
// 2^(exponent - 1075). A limb holds 32 bits. The mantissa has 53 bits, and is shifted left by up to 31 bits to its
// position within a limb. So it takes up to 84 bits, which lie in three limbs.
at::Tensor limbs_of(const at::Tensor& values) {
  constexpr int64_t kLow = 0xffffffff, kFraction = (int64_t{1} << 52) - 1;
  const at::Tensor bits = values.view(at::kLong);
  const at::Tensor exponent = bits.bitwise_right_shift(52).bitwise_and_(0x7ff);
  const at::Tensor mantissa = bits.bitwise_and(kFraction).add_(exponent.ne(0).to(at::kLong), int64_t{1} << 52);
  const at::Tensor position = exponent.clamp_min(1).sub_(1);  // position of the lowest bit, counted from 2^-1074
  const at::Tensor limb = position.bitwise_right_shift(5), shift = position.bitwise_and(31);
  const at::Tensor low = mantissa.bitwise_and(kLow).bitwise_left_shift_(shift);
  const at::Tensor high = mantissa.bitwise_right_shift(32).bitwise_left_shift_(shift);
  at::Tensor limbs = at::zeros({int64_t{ExactSum::kNumLimbs}}, bits.options());
  limbs.index_add_(0, limb, low.bitwise_and(kLow));
  limbs.index_add_(0, limb.add(1), low.bitwise_right_shift(32).add_(high.bitwise_and(kLow)));
  limbs.index_add_(0, limb.add(2), high.bitwise_right_shift(32));
  limbs.slice(0, int64_t{ExactSum::kNonFinite}, int64_t{ExactSum::kNumLimbs}).add_(exponent.eq(0x7ff).sum());
  return limbs;
}

ExactSum sum_of(const at::Tensor& limbs) {
  ExactSum sum;
  const at::Tensor host = limbs.cpu();
  std::copy_n(host.const_data_ptr<int64_t>(), ExactSum::kNumLimbs, sum.limbs().begin());
  return sum;
}

ExactSum sum_by(const DeviceKernels& own, std::span<const at::Tensor> tensors) {
  const c10::OptionalDeviceGuard guard(tensors[0].device());
  const at::Tensor limbs = at::zeros({int64_t{ExactSum::kNumLimbs}}, tensors[0].options().dtype(at::kLong));
  for (const at::Tensor& tensor : tensors)
    own.add_squares(tensor.const_data_ptr(), to_dtype(tensor.scalar_type()), tensor.numel(), limbs.data_ptr<int64_t>());
  return sum_of(limbs);
}

}  // namespace

void squares_into(const at::Tensor& flat, const at::Tensor& limbs) {
  limbs.zero_();
  if (flat.numel() == 0) return;
  if (const DeviceKernels* const own = device_kernels(flat.device().type()); own && own->add_squares) {
    const c10::OptionalDeviceGuard guard(flat.device());
    own->add_squares(flat.const_data_ptr(), to_dtype(flat.scalar_type()), flat.numel(), limbs.data_ptr<int64_t>());
    return;
  }
  BlockSums squares(ceil_div(flat.numel(), kBlockNumel), flat.options().dtype(at::kDouble));
  squares.add(flat);
  limbs.copy_(limbs_of(squares.sums()));
}

ExactSum sum_of_squares(std::span<const at::Tensor> tensors) {
  int64_t blocks = 0;
  for (const at::Tensor& tensor : tensors) blocks += ceil_div(tensor.numel(), kBlockNumel);
  if (blocks == 0) return {};
  if (const DeviceKernels* const own = device_kernels(tensors[0].device().type()); own && own->add_squares)
    return sum_by(*own, tensors);
  BlockSums squares(blocks, tensors[0].options().dtype(at::kDouble));
  for (const at::Tensor& tensor : tensors) squares.add(tensor);
  return sum_of(limbs_of(squares.sums()));
}

}  // namespace zeroshard

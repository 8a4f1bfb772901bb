#include "device/device_squares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/align.h"
#include "layout/shard_layout.h"

namespace zeroshard {
namespace {

constexpr int64_t kBlocksAtOnce = 4096;  // bounds the temporary memory
static_assert((kBlockNumel & (kBlockNumel - 1)) == 0, "blocks are added by halves");

// sums[i] = the sum of the squares of block i of `flat`.
void add_blocks(const at::Tensor& flat, const at::Tensor& sums, const at::Tensor& squares) {
  for (int64_t first = 0; first < sums.numel(); first += kBlocksAtOnce) {
    const int64_t blocks = std::min(kBlocksAtOnce, sums.numel() - first), begin = first * kBlockNumel;
    const at::Tensor part = flat.slice(0, begin, std::min(flat.numel(), begin + blocks * kBlockNumel));
    const at::Tensor rows = squares.slice(0, 0, blocks), all = rows.view({-1});
    all.slice(0, 0, part.numel()).copy_(part);
    if (part.numel() < all.numel()) all.slice(0, part.numel(), all.numel()).zero_();
    rows.mul_(rows);
    // By halves, not sum(): its order of additions depends on the number of rows.
    for (int64_t half = kBlockNumel / 2; half > 0; half /= 2)
      rows.slice(1, 0, half).add_(rows.slice(1, half, 2 * half));
    sums.slice(0, first, first + blocks).copy_(rows.select(1, 0));
  }
}

// The limbs of an ExactSum of doubles that are not negative. A double is mantissa * 2^(exponent - 1075); its mantissa of
// 53 bits, moved left by up to 31, lies in three limbs.
at::Tensor limbs_of(const at::Tensor& values) {
  constexpr int64_t kLow = 0xffffffff, kFraction = (int64_t{1} << 52) - 1;
  const at::Tensor bits = values.view(at::kLong);
  const at::Tensor exponent = bits.bitwise_right_shift(52).bitwise_and_(0x7ff);
  const at::Tensor mantissa = bits.bitwise_and(kFraction).add_(exponent.ne(0).to(at::kLong), int64_t{1} << 52);
  const at::Tensor position = exponent.clamp_min(1).sub_(1);  // of the lowest bit, from 2^-1074 on
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

}  // namespace

ExactSum sum_of_squares(std::span<const at::Tensor> tensors) {
  ExactSum sum;
  int64_t blocks = 0, most = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t own = ceil_div(tensor.numel(), kBlockNumel);
    blocks += own;
    most = std::max(most, own);
  }
  if (blocks == 0) return sum;
  const auto options = tensors[0].options().dtype(at::kDouble);
  const at::Tensor sums = at::empty({blocks}, options);
  const at::Tensor squares = at::empty({std::min(most, kBlocksAtOnce), kBlockNumel}, options);
  int64_t next = 0;
  for (const at::Tensor& tensor : tensors) {
    const int64_t own = ceil_div(tensor.numel(), kBlockNumel);
    add_blocks(tensor, sums.slice(0, next, next + own), squares);
    next += own;
  }
  const at::Tensor host = limbs_of(sums).cpu();
  std::copy_n(host.const_data_ptr<int64_t>(), ExactSum::kNumLimbs, sum.limbs().begin());
  return sum;
}

}  // namespace zeroshard

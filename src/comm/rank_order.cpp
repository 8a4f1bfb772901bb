#include "comm/rank_order.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/kernels.h"

namespace zeroshard {
namespace {

constexpr int64_t kSummedBlock = 512;  // elements

// Combines the elements [begin, begin + count) of the pieces as a tree; see Note [The tree of a sum] in kernels_impl.h.
template <typename T, typename Combine>
void combine_block(std::span<const void* const> pieces, int64_t begin, int64_t count, T* out, const Combine& combine) {
  if (pieces.size() == 1) {
    std::memcpy(out, static_cast<const T*>(pieces[0]) + begin, static_cast<size_t>(count) * sizeof(T));
    return;
  }
  const size_t left = std::bit_floor(pieces.size() - 1);
  combine_block(pieces.first(left), begin, count, out, combine);
  T right[kSummedBlock];
  combine_block(pieces.subspan(left), begin, count, right, combine);
  for (int64_t i = 0; i < count; ++i) out[i] = combine(out[i], right[i]);
}

template <typename T, typename Combine>
void reduce(std::span<const void* const> pieces, void* out, int64_t numel, Combine combine) {
  // `out` can be one of the pieces, so a block of `out` is written only after this block was read from all pieces.
  T sums[kSummedBlock];
  for (int64_t begin = 0; begin < numel; begin += kSummedBlock) {
    const int64_t count = std::min(kSummedBlock, numel - begin);
    combine_block(pieces, begin, count, sums, combine);
    std::memcpy(static_cast<T*>(out) + begin, sums, static_cast<size_t>(count) * sizeof(T));
  }
}

template <typename T>
void reduce(std::span<const void* const> pieces, ReduceOp op, void* out, int64_t numel) {
  if (op == ReduceOp::kSum) {
    reduce<T>(pieces, out, numel, [](T a, T b) { return a + b; });
  } else {
    // If any element is NaN, the result is NaN, as in a sum, because `b <= a` is false for NaN.
    reduce<T>(pieces, out, numel, [](T a, T b) { return a != a || b <= a ? a : b; });
  }
}

}  // namespace

void reduce_in_rank_order(std::span<const void* const> pieces, DType dtype, ReduceOp op, void* out, int64_t numel) {
  if (numel == 0) return;
  switch (dtype) {
    case DType::kFloat32:
      return reduce<float>(pieces, op, out, numel);
    case DType::kFloat64:
      return reduce<double>(pieces, op, out, numel);
    case DType::kOther8:  // unsigned sums have the bits of two's complement, and they are allowed to wrap
      if (op == ReduceOp::kSum) return reduce<uint64_t>(pieces, op, out, numel);
      return reduce<int64_t>(pieces, op, out, numel);
    case DType::kBFloat16:
    case DType::kFloat16:
      ZS_CHECK(op == ReduceOp::kSum, "cannot take the maximum of ", name_of(dtype));
      return kernels::sum_in_order(pieces, dtype, 1.0f, out, dtype, false, numel);
    default:
      ZS_CHECK(false, "cannot reduce ", name_of(dtype));
  }
}

}  // namespace zeroshard

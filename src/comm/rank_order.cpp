#include "comm/rank_order.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/kernels.h"

namespace zeroshard {
namespace {

constexpr int64_t kSummedBlock = 512;

template <typename T, typename Combine>
void reduce(std::span<const void* const> pieces, void* out, int64_t numel, Combine combine) {
  T sums[kSummedBlock];  // `out` may be a piece, so it is written after all pieces of the block were read
  for (int64_t begin = 0; begin < numel; begin += kSummedBlock) {
    const int64_t count = std::min(kSummedBlock, numel - begin);
    std::memcpy(sums, static_cast<const T*>(pieces[0]) + begin, static_cast<size_t>(count) * sizeof(T));
    for (const void* piece : pieces.subspan(1)) {
      const T* values = static_cast<const T*>(piece) + begin;
      for (int64_t i = 0; i < count; ++i) sums[i] = combine(sums[i], values[i]);
    }
    std::memcpy(static_cast<T*>(out) + begin, sums, static_cast<size_t>(count) * sizeof(T));
  }
}

template <typename T>
void reduce(std::span<const void* const> pieces, ReduceOp op, void* out, int64_t numel) {
  if (op == ReduceOp::kSum) {
    reduce<T>(pieces, out, numel, [](T a, T b) { return a + b; });
  } else {
    // A NaN wins, like in a sum, because `b <= a` is false for it.
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
    case DType::kOther8:  // in two's complement, unsigned sums have the same bits and may wrap
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

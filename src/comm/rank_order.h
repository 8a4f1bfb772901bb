#pragma once
#include <cstdint>
#include <span>

#include "comm/comm.h"

namespace zeroshard {

// For kSum, computes out[i] = ((pieces[0][i] + pieces[1][i]) + (pieces[2][i] + pieces[3][i])) + ..., in the tree of
// sum_in_order(). For kMax, computes the maximum over the pieces. out[i] is NaN if element i of any piece is NaN. fp32,
// fp64 and kOther8 (int64, whose sums wrap) are added in their own precision. kSum also takes bf16 and fp16, and adds
// them in fp32. Throws ValueError for other dtypes. `out` may be one of the pieces.
void reduce_in_rank_order(std::span<const void* const> pieces, DType dtype, ReduceOp op, void* out, int64_t numel);

}  // namespace zeroshard

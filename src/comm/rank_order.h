#pragma once
#include <cstdint>
#include <span>

#include "comm/comm.h"

namespace zeroshard {

// Computes out[i] = ((pieces[0][i] + pieces[1][i]) + (pieces[2][i] + pieces[3][i])) + ..., as the tree of
// sum_in_order(), or the maximum over the pieces. If a piece has a NaN, so has the result. fp32, fp64 and kOther8
// (int64, whose sums wrap) are added in their own precision. kSum also takes bf16 and fp16, and adds them in fp32.
// Throws ValueError for other dtypes. `out` may be one of the pieces.
void reduce_in_rank_order(std::span<const void* const> pieces, DType dtype, ReduceOp op, void* out, int64_t numel);

}  // namespace zeroshard

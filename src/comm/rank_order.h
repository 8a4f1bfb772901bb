#pragma once
#include <cstdint>
#include <span>

#include "comm/comm.h"

namespace zeroshard {

// Computes out[i] = ((pieces[0][i] + pieces[1][i]) + (pieces[2][i] + pieces[3][i])) + ..., the tree of sum_in_order(),
// or the maximum. fp32, fp64 and kOther8 (int64, which wraps) are added in their own precision. With kSum, bf16 and
// fp16 are also allowed and added in fp32. `out` may be one of the pieces.
void reduce_in_rank_order(std::span<const void* const> pieces, DType dtype, ReduceOp op, void* out, int64_t numel);

}  // namespace zeroshard

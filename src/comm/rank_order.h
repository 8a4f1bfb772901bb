#pragma once
#include <cstdint>
#include <span>

#include "comm/comm.h"

namespace zeroshard {

// out[i] = ((pieces[0][i] + pieces[1][i]) + pieces[2][i]) + ..., or the largest. fp32, fp64 and kOther8 (int64, which
// wraps) in their own precision; with kSum also bf16 and fp16, summed in fp32. `out` may be one of the pieces.
void reduce_in_rank_order(std::span<const void* const> pieces, DType dtype, ReduceOp op, void* out, int64_t numel);

}  // namespace zeroshard

#pragma once
#include <bit>

#include "zeroshard/dtype.h"

namespace zeroshard {

// Returns whether ranks of several hosts send each other one fp32 sum for each host instead of the pieces of the host's
// ranks. The sum must be a node of the canonical tree, so the host must have a power of two of ranks. The sums must
// also take at most half the bytes of the pieces, because the scratch has to hold the sums that are sent and those that
// are received.
inline bool sums_on_hosts(int ranks_per_host, DType dtype) {
  return is_floating_point(dtype) && std::has_single_bit(unsigned(ranks_per_host)) &&
         ranks_per_host * element_size(dtype) >= 2 * element_size(DType::kFloat32);
}

}  // namespace zeroshard

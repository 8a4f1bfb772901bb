#pragma once
#include <bit>

#include "zeroshard/dtype.h"

namespace zeroshard {

// Returns whether a reduction over several hosts sends one fp32 sum for each host instead of one piece for each rank. A
// rank's piece is the part of its data that the receiving rank reduces. Three conditions must hold:
// - `dtype` is a floating-point type.
// - The number of a host's ranks is a power of two. A host's sum is then a node of the binary tree in which the pieces
//   of all ranks are added, so the result has the same bits with sums as with pieces.
// - The sums take at most half the bytes of the pieces, because the memory for received pieces has to hold both the
//   sums that are sent and those that are received.
inline bool sums_on_hosts(int ranks_per_host, DType dtype) {
  return is_floating_point(dtype) && std::has_single_bit(unsigned(ranks_per_host)) &&
         ranks_per_host * element_size(dtype) >= 2 * element_size(DType::kFloat32);
}

}  // namespace zeroshard

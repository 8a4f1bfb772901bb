#pragma once
#include <bit>
#include <cstddef>
#include <span>

namespace zeroshard::testing {

// The sum in the canonical order: the left half of the tree is the largest power of two of values that leaves some for
// the right half.
template <typename T>
T tree_sum(std::span<const T> values) {
  if (values.size() == 1) return values[0];
  const size_t left = std::bit_floor(values.size() - 1);
  return tree_sum(values.first(left)) + tree_sum(values.subspan(left));
}

}  // namespace zeroshard::testing

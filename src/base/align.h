#pragma once
#include <cstdint>

namespace zeroshard {

constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
constexpr int64_t align_up(int64_t value, int64_t alignment) {
  return ceil_div(value, alignment) * alignment;
}

}  // namespace zeroshard

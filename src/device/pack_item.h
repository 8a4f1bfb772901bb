#pragma once
#include <cstdint>

namespace zeroshard {

// The elements of one tensor, and their place in a bucket.
struct PackItem {
  const void* src = nullptr;
  void* dst = nullptr;
  int64_t numel = 0;
};

}  // namespace zeroshard

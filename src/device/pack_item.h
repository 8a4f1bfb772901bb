#pragma once
#include <cstdint>

namespace zeroshard {

// The elements of one tensor on their way into a bucket.
struct PackItem {
  const void* src = nullptr;
  void* dst = nullptr;
  int64_t numel = 0;
};

}  // namespace zeroshard

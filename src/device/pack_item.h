#pragma once
#include <cstdint>

namespace zeroshard {

// A tensor of `numel` elements at `src`, and the address in a bucket to which it is packed.
struct PackItem {
  const void* src = nullptr;
  void* dst = nullptr;
  int64_t numel = 0;
};

}  // namespace zeroshard

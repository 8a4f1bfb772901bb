#pragma once
#include <cstdint>

namespace zeroshard {

// Copies `bytes` bytes. The source and the destination must not overlap. The stores of a large copy bypass the caches.
void copy_bytes(void* to, const void* from, int64_t bytes);

}  // namespace zeroshard

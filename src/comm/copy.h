#pragma once
#include <cstdint>

namespace zeroshard {

// Copies `bytes` bytes; none if `bytes` is not positive. The source and the destination must not overlap. On x86,
// copies of at least 4 MiB write past the caches.
void copy_bytes(void* to, const void* from, int64_t bytes);

}  // namespace zeroshard

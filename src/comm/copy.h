#pragma once
#include <cstdint>

namespace zeroshard {

// Copies bytes between non-overlapping memory. Large copies bypass the caches of the destination.
void copy_bytes(void* to, const void* from, int64_t bytes);

}  // namespace zeroshard

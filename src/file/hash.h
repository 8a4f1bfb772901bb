#pragma once
#include <cstdint>

namespace zeroshard {

// Returns the 64-bit XXH3 hash with seed 0, which is the checksum in zeroshard's files. The hash is the same on every
// machine.
uint64_t hash_bytes(const void* data, int64_t bytes);

}  // namespace zeroshard

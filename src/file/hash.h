#pragma once
#include <cstdint>

namespace zeroshard {

// XXH3, 64 bits, seed 0: the checksum in zeroshard's files. The same on every machine.
uint64_t hash_bytes(const void* data, int64_t bytes);

}  // namespace zeroshard

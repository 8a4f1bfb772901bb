#include "file/hash.h"

#include <cstddef>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace zeroshard {

uint64_t hash_bytes(const void* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
}

}  // namespace zeroshard

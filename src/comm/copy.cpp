#include "comm/copy.h"

#include <cstring>

namespace zeroshard {

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace zeroshard

#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace zeroshard {

// Alignment of memory, offset and length; enough for any usual device.
inline constexpr int64_t kDirectAlignment = 4096;

struct FreeMemory {
  void operator()(std::byte* data) const { std::free(data); }
};
using DirectBuffer = std::unique_ptr<std::byte, FreeMemory>;

// Returns `bytes` of uninitialised memory for O_DIRECT. Large buffers use huge pages if the system has them, so that a
// device gets fewer and longer pieces. Throws std::bad_alloc.
DirectBuffer allocate_direct(int64_t bytes);

}  // namespace zeroshard

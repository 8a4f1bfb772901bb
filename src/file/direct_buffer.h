#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace zeroshard {

// The alignment in bytes of memory, offset and length for O_DIRECT. Every usual device accepts this alignment.
inline constexpr int64_t kDirectAlignment = 4096;

struct FreeMemory {
  void operator()(std::byte* data) const { std::free(data); }
};
using DirectBuffer = std::unique_ptr<std::byte, FreeMemory>;

// Returns at least `bytes` bytes of uninitialised memory for O_DIRECT. Buffers of 2 MiB or more use huge pages if the
// system has them, because a device then transfers fewer and longer pieces of memory. Throws std::bad_alloc.
DirectBuffer allocate_direct(int64_t bytes);

}  // namespace zeroshard

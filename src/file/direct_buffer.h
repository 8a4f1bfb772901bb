#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace zeroshard {

inline constexpr int64_t kDirectAlignment = 4096;  // O_DIRECT's, of memory, offset and length, on any usual device

struct FreeMemory {
  void operator()(std::byte* data) const { std::free(data); }
};
using DirectBuffer = std::unique_ptr<std::byte, FreeMemory>;

// `bytes`, not initialised, for O_DIRECT. Large buffers are in huge pages where the system has them: a device takes
// fewer, longer stretches then. Throws std::bad_alloc.
DirectBuffer allocate_direct(int64_t bytes);

}  // namespace zeroshard

#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace zeroshard {

inline constexpr int64_t kDirectAlignment = 4096;  // of memory, offset and length; enough on any usual device

struct FreeMemory {
  void operator()(std::byte* data) const { std::free(data); }
};
using DirectBuffer = std::unique_ptr<std::byte, FreeMemory>;

// `bytes` of uninitialised memory for O_DIRECT. Large buffers use huge pages where the system has them, so that a
// device gets fewer, longer stretches. Throws std::bad_alloc.
DirectBuffer allocate_direct(int64_t bytes);

}  // namespace zeroshard

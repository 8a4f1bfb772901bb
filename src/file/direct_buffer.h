#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace zeroshard {

inline constexpr int64_t kDirectAlignment = 4096;  // O_DIRECT's, of memory, offset and length, on any usual device

struct FreeMemory {
  void operator()(std::byte* data) const { std::free(data); }
};
using DirectBuffer = std::unique_ptr<std::byte, FreeMemory>;

inline DirectBuffer allocate_direct(int64_t bytes) {
  DirectBuffer buffer(static_cast<std::byte*>(std::aligned_alloc(size_t{kDirectAlignment}, size_t(bytes))));
  if (!buffer) throw std::bad_alloc();
  return buffer;
}

}  // namespace zeroshard

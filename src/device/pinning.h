#pragma once
#include <cstdint>
#include <string>

namespace zeroshard {

// Pins host memory, so that CUDA can copy to and from it directly. Returns why the memory cannot be pinned, or "" on
// success.
std::string pin_for_cuda(void* memory, int64_t bytes);
void unpin_for_cuda(void* memory) noexcept;

}  // namespace zeroshard

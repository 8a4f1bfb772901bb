#pragma once
#include <cstdint>
#include <string>

namespace zeroshard {

// Pins host memory so that CUDA can copy to and from it directly. Returns "", or why it cannot be pinned.
std::string pin_for_cuda(void* memory, int64_t bytes);
void unpin_for_cuda(void* memory) noexcept;

}  // namespace zeroshard

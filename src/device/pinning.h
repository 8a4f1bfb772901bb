#pragma once
#include <cstdint>
#include <string>

namespace zeroshard {

// Lets CUDA copy to and from memory of the host by itself. Returns why it cannot, "" when it can.
std::string pin_for_cuda(void* memory, int64_t bytes);
void unpin_for_cuda(void* memory) noexcept;

}  // namespace zeroshard

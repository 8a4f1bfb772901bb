#pragma once
#include <functional>
#include <string>

namespace zeroshard {

// Runs `allocate`. If the CPU does not have enough memory, throws OutOfMemory with the reason, followed by `what`.
// LibTorch's own error would name neither a parameter nor a remedy.
void tell_missing_memory(const std::function<void()>& allocate, const std::function<std::string()>& what);

}  // namespace zeroshard

#pragma once
#include <functional>
#include <string>

namespace zeroshard {

// Runs `allocate`. If it fails for lack of memory on the CPU, throws OutOfMemory with the reason and then `what`:
// LibTorch's own error names neither a parameter nor a remedy.
void tell_missing_memory(const std::function<void()>& allocate, const std::function<std::string()>& what);

}  // namespace zeroshard

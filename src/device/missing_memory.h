#pragma once
#include <functional>
#include <string>

namespace zeroshard {

// Runs `allocate`. Where there is no memory for it on the CPU, throws OutOfMemory with the reason and `what` behind it:
// LibTorch's own error names neither a parameter nor a way out.
void tell_missing_memory(const std::function<void()>& allocate, const std::function<std::string()>& what);

}  // namespace zeroshard

#pragma once
#include <functional>
#include <string>

namespace zeroshard {

// Runs `allocate`. If the CPU does not have enough memory, or a limit of the ledger is exceeded, throws OutOfMemory
// with the reason, followed by what(). If a device does not have enough memory, throws LibTorch's c10::OutOfMemoryError
// with what() added. what() should name the parameter and a remedy, because LibTorch's own text names neither. Other
// errors pass unchanged.
void tell_missing_memory(const std::function<void()>& allocate, const std::function<std::string()>& what);

}  // namespace zeroshard

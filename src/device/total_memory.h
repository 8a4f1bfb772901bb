#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace zeroshard {

// Returns the bytes of a CUDA device's memory, including those that other processes use. Returns nothing for other
// devices, or if the driver does not tell.
std::optional<int64_t> total_memory(c10::Device device);

}  // namespace zeroshard

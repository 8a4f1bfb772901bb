#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace zeroshard {

// Returns the bytes that a CUDA device has, including those in use by others. Returns nothing for other devices, or if
// the driver does not say.
std::optional<int64_t> total_memory(c10::Device device);

}  // namespace zeroshard

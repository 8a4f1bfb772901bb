#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace zeroshard {

// Bytes that a CUDA device has, those in use by others among them. Nothing for any other device, and where the driver
// does not say.
std::optional<int64_t> total_memory(c10::Device device);

}  // namespace zeroshard

#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace zeroshard {

// Copies memory of `device` into host memory and waits for it; on the CPU with all threads.
void copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);

}  // namespace zeroshard

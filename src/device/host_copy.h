#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace zeroshard {

// Copies memory of `device` into host memory and waits for it; on the CPU with all threads.
void copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

// The same, by the device's current stream, for which the host waits only if its memory is not pinned. The CPU has
// copied when they return.
void begin_copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void begin_copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

}  // namespace zeroshard

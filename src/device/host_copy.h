#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace zeroshard {

// Copy between device memory and host memory, and wait for the copy. On the CPU they use all threads.
void copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

// The same on the device's current stream. The host waits only if its memory is not pinned. On the CPU the copy is
// complete when they return.
void begin_copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void begin_copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

}  // namespace zeroshard

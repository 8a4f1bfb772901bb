#pragma once
#include <c10/core/Device.h>

#include <cstdint>

namespace zeroshard {

// copy_to_host() and copy_from_host() copy between device memory and host memory, and wait for the copy. If the device
// is the CPU, they copy with all threads.
void copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

// begin_copy_to_host() and begin_copy_from_host() start the same copies on the device's current stream. The host waits
// only if the host memory is not pinned. If the device is the CPU, the copy is complete on return.
void begin_copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void begin_copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

}  // namespace zeroshard

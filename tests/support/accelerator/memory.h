#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstdint>

#include "support/accelerator/streams.h"

// Memory of simulated devices. The host half of a device's address range is never accessible: a host that reads or
// writes device memory dies of SIGSEGV at the guilty line. What a kernel works on lies kArenaBytes above.
namespace zeroshard::accelerator {

inline constexpr int kDevices = 8;
inline constexpr uintptr_t kArenaBytes = uintptr_t{4} << 30;

// Where a kernel finds the memory that the host calls `device_address`.
void* real_address(const void* device_address);
// Of an address of device memory, or -1.
int device_of(const void* address);

// Fresh memory is filled with 0xFF by the current stream, and freed memory by the stream that it was made for; only
// that stream gets it again.
c10::Allocator& device_allocator();
// The memory is freed after what `stream` has now.
void use_on_stream(const c10::DataPtr& memory, c10::Stream stream);
int64_t allocated_bytes(int device);
// The most that was allocated at one time since reset_peak().
int64_t peak_bytes(int device);
void reset_peak(int device);

c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);
// From now on there is no pinned memory, as where a process may not lock any.
void refuse_to_pin(bool refuses);
int64_t pinned_bytes();
// How often pinned memory was freed while a stream was yet to use it. It then stays until that has ended.
int64_t pinned_frees_in_use();
// The memory is freed when `mark` is done, as that of torch's own allocator is.
void use_pinned(const void* address, const Mark& mark);

// Of this thread.
int current_device();
void set_current_device(int device);
StreamKey current_stream(int device);
void set_current_stream(StreamKey stream);

}  // namespace zeroshard::accelerator

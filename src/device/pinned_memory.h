#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace zeroshard {

// Returns exactly `bytes` of host memory that `device` can copy to and from directly. (torch's own allocator of such
// memory for CUDA rounds up to a power of two.) If the memory cannot be pinned, for example because locked memory is
// limited, returns ordinary memory, whose copies make the host wait. The first time this happens, a warning is logged.
// Throws StateError if there is no memory. No copy may be running when the memory is freed.
std::shared_ptr<std::byte> pinned_memory(int64_t bytes, c10::Device device);

}  // namespace zeroshard

#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace zeroshard {

// Returns host memory of exactly `bytes` that `device` can copy to and from directly. (torch's own allocator of such
// memory rounds up to a power of two.) If the memory cannot be pinned, for example because locked memory is limited,
// copies make the host wait, and the first such case logs a warning. Throws StateError if there is no memory. No copy
// may be running when the memory is freed.
std::shared_ptr<std::byte> pinned_memory(int64_t bytes, c10::Device device);

}  // namespace zeroshard

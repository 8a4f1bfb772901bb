#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace zeroshard {

// Host memory of exactly `bytes` that `device` can copy to and from by itself (torch's own allocator of such memory
// rounds up to a power of two). Where it cannot be pinned, as where locked memory is limited, copies make the host
// wait, and the first time a warning says so. Throws StateError when there is no memory. Nothing may be copied when it
// goes.
std::shared_ptr<std::byte> pinned_memory(int64_t bytes, c10::Device device);

}  // namespace zeroshard

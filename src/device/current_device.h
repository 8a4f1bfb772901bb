#pragma once
#include <c10/core/impl/VirtualGuardImpl.h>

namespace zeroshard {

// Returns `device` with an index. If it has none (torch.device("cuda")), the index is that of this thread's current
// device. Returns the CPU unchanged.
inline c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace zeroshard

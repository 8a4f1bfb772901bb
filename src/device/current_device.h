#pragma once
#include <c10/core/impl/VirtualGuardImpl.h>

namespace zeroshard {

// Returns `device` with an index. A device without one (torch.device("cuda")) means the current device of this thread.
inline c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace zeroshard

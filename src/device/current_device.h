#pragma once
#include <c10/core/impl/VirtualGuardImpl.h>

namespace zeroshard {

// A device without an index (torch.device("cuda")) is the one that is current for this thread.
inline c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

}  // namespace zeroshard

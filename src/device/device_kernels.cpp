#include "device/device_kernels.h"

#include <array>
#include <atomic>

#include "device/cuda_kernels.h"

namespace zeroshard {
namespace {

using Slots = std::array<std::atomic<const DeviceKernels*>, size_t(c10::COMPILE_TIME_MAX_DEVICE_TYPES)>;

Slots& slots() {
  static Slots slots{};
  return slots;
}

}  // namespace

const DeviceKernels* device_kernels(c10::DeviceType type) {
  if (const DeviceKernels* const set = slots().at(size_t(type))) return set;
  return type == c10::DeviceType::CUDA ? cuda_kernels() : nullptr;
}

void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels) {
  slots().at(size_t(type)) = kernels;
}

}  // namespace zeroshard

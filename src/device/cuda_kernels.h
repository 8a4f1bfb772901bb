#pragma once
#include "device/device_kernels.h"

namespace zeroshard {

// Returns null if zeroshard was built without CUDA or without its compiler.
const DeviceKernels* cuda_kernels();

}  // namespace zeroshard

#pragma once
#include "device/device_kernels.h"

namespace zeroshard {

// Returns the kernels of CUDA, or null if zeroshard was built without CUDA or without its compiler.
const DeviceKernels* cuda_kernels();

}  // namespace zeroshard

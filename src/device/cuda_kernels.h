#pragma once
#include "device/device_kernels.h"

namespace zeroshard {

// Null where zeroshard was built without CUDA, or without its compiler.
const DeviceKernels* cuda_kernels();

}  // namespace zeroshard

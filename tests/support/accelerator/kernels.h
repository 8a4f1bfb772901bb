#pragma once

namespace zeroshard::accelerator {

// Gives the simulated devices kernels of their own, as CUDA has: the CPU's, on the device's streams. Without them the
// engine uses LibTorch's operations.
void use_own_kernels(bool use);

}  // namespace zeroshard::accelerator

#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

namespace zeroshard {

// Returns the sum of the squares of all elements of 1-D tensors of one device. The host waits once, for all tensors
// together. Each tensor consists of blocks of kBlockNumel elements, from its first element on. The squares of a block
// are added in fp64 in a fixed order. The sums of the blocks are added exactly, on the device. So cutting a tensor into
// several at multiples of kBlockNumel does not change the result. If the device has no DeviceKernels::add_squares, the
// call needs up to 32 MiB of its memory for squares, and less than 100 bytes for each block.
ExactSum sum_of_squares(std::span<const at::Tensor> tensors);

// Computes the sum of the squares of one tensor in the same way, but the host does not wait. Writes the limbs of the
// sum to `limbs`, an int64 tensor of ExactSum::kNumLimbs elements on the same device.
void squares_into(const at::Tensor& flat, const at::Tensor& limbs);

}  // namespace zeroshard

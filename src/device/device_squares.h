#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

namespace zeroshard {

// Returns the sum of the squares of all elements of 1-D tensors of one device. It takes a few operations for all
// tensors, and the host waits once. Blocks of kBlockNumel elements, counted from the tensor's first element, are
// squared and added in fp64 in a fixed order. The sums of blocks are added exactly, on the device. So the result does
// not depend on how tensors are cut, if they are cut at multiples of kBlockNumel. Needs 32 MiB on the device.
ExactSum sum_of_squares(std::span<const at::Tensor> tensors);

// The same for one tensor without waiting. It writes the limbs of the sum to `limbs` (int64, ExactSum::kNumLimbs of
// them, on the same device).
void squares_into(const at::Tensor& flat, const at::Tensor& limbs);

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

namespace zeroshard {

// The sum of the squares of all elements of 1-D tensors of one device, in a few operations over all of them, and with
// one wait of the host. Each kBlockNumel elements are squared and added in fp64 in a fixed order, from the tensor's
// first element on; blocks are added exactly, on the device. So where tensors are cut at multiples of kBlockNumel, how
// they are cut does not change the sum. Needs 32 MiB on the device.
ExactSum sum_of_squares(std::span<const at::Tensor> tensors);

// The same for one tensor, without a wait: the limbs of its sum are written to `limbs` (int64, ExactSum::kNumLimbs of
// them, on the same device).
void squares_into(const at::Tensor& flat, const at::Tensor& limbs);

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Copies what the user has written to 16-bit parameters into the master weights. If a parameter differs from its
// rounded fp32 master weight, the master weight becomes the parameter's value. Both tensors are 1-D, have equally many
// elements, and are on the same device.
void take_written(const at::Tensor& master, const at::Tensor& param);
// Returns whether take_written() would change a master weight. Both tensors must be on the host.
bool is_written(const at::Tensor& master, const at::Tensor& param);

}  // namespace zeroshard

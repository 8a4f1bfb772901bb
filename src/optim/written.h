#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Copies the user's writes to 16-bit parameters into the master weights: if a parameter differs from its rounded fp32
// master weight, the master weight becomes the parameter's value. Both tensors are 1-D, and have equally many elements.
void take_written(const at::Tensor& master, const at::Tensor& param);
// Returns whether take_written() would change a master weight. The tensors are on the host.
bool is_written(const at::Tensor& master, const at::Tensor& param);

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Takes over the user's writes to 16-bit parameters: where a parameter differs from its rounded fp32 master weight, the
// master becomes the parameter's value. Both are 1-D with equally many elements.
void take_written(const at::Tensor& master, const at::Tensor& param);
// Whether take_written() would change something. On the host.
bool is_written(const at::Tensor& master, const at::Tensor& param);

}  // namespace zeroshard

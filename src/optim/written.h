#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// What users have written to parameters in 16 bits counts: where a parameter is not what its fp32 master weight rounds
// to, the master becomes the parameter's value. Both are 1-D and have as many elements.
void take_written(const at::Tensor& master, const at::Tensor& param);

}  // namespace zeroshard

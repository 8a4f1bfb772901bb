#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "zeroshard/optimizer.h"

namespace zeroshard {

// The 1-D tensors of one update, all over the same elements. `master` is undefined when `param` is fp32.
struct UpdateTensors {
  at::Tensor master, param, grad;
  std::vector<at::Tensor> moments, scales = {};  // see StateTensors

  UpdateTensors slice(int64_t begin, int64_t end) const;
};

// One optimizer update with LibTorch's operations, for devices without kernels of ours (device_kernels.h). `step` is 1
// for the first update. The same formulas as src/kernels; Adam is the library's fused kernel.
void aten_step(OptimizerConfig::Type type, const UpdateTensors& tensors, const ParamGroupOptions& options, int64_t step,
               float grad_scale);

}  // namespace zeroshard

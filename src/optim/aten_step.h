#pragma once
#include <ATen/core/Tensor.h>

#include "device/cut.h"
#include "store/array.h"
#include "zeroshard/optimizer.h"

namespace zeroshard {

// The 1-D tensors of one update, all for the same elements. `master` is undefined if `param` is fp32.
struct UpdateTensors : StateTensors {
  at::Tensor param, grad;

  UpdateTensors slice(Range range) const { return {StateTensors::slice(range), cut(param, range), cut(grad, range)}; }
};

// Makes one optimizer update with LibTorch's operations, for devices for which zeroshard has no kernels
// (device_kernels.h). `step` is 1 for the first update. The update uses the gradient times `grad_scale`. The formulas
// are those of src/kernels. Adam with bias correction uses LibTorch's fused kernel, except on the CPU. Moments must be
// fp32. `type` must not be kMuon, whose matrices apply_matrix_update() updates.
void aten_step(OptimizerConfig::Type type, const UpdateTensors& tensors, const ParamGroupOptions& options, int64_t step,
               float grad_scale);

}  // namespace zeroshard

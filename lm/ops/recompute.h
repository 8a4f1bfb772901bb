#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace zeroshard {

// forward(input), of which the graph keeps the input alone: the backward pass calls `forward` again, with the same
// random numbers, for what lies between (Chen et al. 2016, "Training deep nets with sublinear memory cost"). `forward`
// may use parameters; they get their gradients. It must own what else it uses.
at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> forward);

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace zeroshard {

// Computes forward(input), for which the graph keeps only the input. The backward pass calls `forward` again, with the
// same random numbers, to restore the intermediate results (Chen et al. 2016, "Training deep nets with sublinear memory
// cost"). `forward` may use parameters, which get their gradients. It must own everything else that it uses.
//
// With `keep`, the graph does not keep the input either. It keeps the function that `keep` returns, which brings the
// input back. If `keep` returns an empty function, the input stays where it is.
using KeepInput = std::function<std::function<at::Tensor()>(const at::Tensor&)>;
at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> forward,
                     const KeepInput& keep = {});

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace zeroshard {

// Returns forward(input). If gradients are disabled, the function does nothing else. Otherwise the autograd graph keeps
// only the input, and not the intermediate results. The backward pass calls `forward` a second time to compute them
// again (Chen et al. 2016, "Training deep nets with sublinear memory cost"). In the second call the default random
// generator of the input's device gives the same numbers as in the first call. `forward` may use parameters, and they
// get their gradients. `forward` must own everything else that it uses, because the backward pass calls it later.
//
// `keep`, if given, gets the input, can move it elsewhere, and returns a function that brings it back. The graph then
// keeps this function instead of the input. If `keep` returns an empty function, the graph keeps the input as without
// `keep`.
using KeepInput = std::function<std::function<at::Tensor()>(const at::Tensor&)>;
at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> forward,
                     const KeepInput& keep = {});

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace zeroshard {

// Returns forward(input). The autograd graph keeps only the input, and not the intermediate results. The backward pass
// calls `forward` a second time to restore them (Chen et al. 2016, "Training deep nets with sublinear memory cost"). In
// this call the default random generator of the input's device gives the same numbers as in the first call. `forward`
// may use parameters, and they get their gradients. `forward` must own everything else that it uses, because the
// backward pass calls it later. If gradients are disabled, the function only calls `forward`.
//
// With `keep`, the graph does not keep the input either. `keep` gets the input, can move it elsewhere, and returns a
// function that brings it back. The graph keeps that function. If `keep` returns an empty function, the graph keeps the
// input.
using KeepInput = std::function<std::function<at::Tensor()>(const at::Tensor&)>;
at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> forward,
                     const KeepInput& keep = {});

}  // namespace zeroshard

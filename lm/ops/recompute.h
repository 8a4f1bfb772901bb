#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace zeroshard {

// Returns forward(input), and keeps only the input in the autograd graph. The backward pass calls `forward` a second
// time, with the same random numbers, to restore the intermediate results (Chen et al. 2016, "Training deep nets with
// sublinear memory cost"). `forward` may use parameters, and they get their gradients. `forward` must own everything
// else that it uses.
//
// With `keep`, the graph does not keep the input either. `keep` gets the input, can move it elsewhere, and returns a
// function that brings it back. The graph keeps that function. If `keep` returns an empty function, the graph keeps the
// input.
using KeepInput = std::function<std::function<at::Tensor()>(const at::Tensor&)>;
at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> forward,
                     const KeepInput& keep = {});

}  // namespace zeroshard

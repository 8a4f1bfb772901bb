#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace zeroshard {

// forward(input), of which the graph keeps only the input: the backward pass calls `forward` again, with the same
// random numbers, to restore the rest (Chen et al. 2016, "Training deep nets with sublinear memory cost"). `forward`
// may use parameters, which get their gradients. It must own everything else that it uses.
//
// With `keep` the graph does not keep the input either, but what `keep` returns, which gives it back; an empty result
// leaves the input where it is.
using KeepInput = std::function<std::function<at::Tensor()>(const at::Tensor&)>;
at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> forward,
                     const KeepInput& keep = {});

}  // namespace zeroshard

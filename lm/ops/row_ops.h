#pragma once
#include <ATen/core/Tensor.h>

// Operations of models with their own autograd functions. On the CPU they take one pass over fp32 rows in forward and
// one in backward, while PyTorch's own operations need many passes and keep intermediate results. fits_row_ops() tells
// which tensors they support.
namespace zeroshard {

// Returns whether these operations support `x`.
bool fits_row_ops(const at::Tensor& x);

// Computes x / sqrt(mean(x^2) + eps) * (offset + weight) over the last dimension (Zhang and Sennrich 2019). x: fp32,
// [..., features]; weight: fp32, [features].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, float offset);

// Computes x * cos + (-second half of x, first half of x) * sin over the last dimension (Su et al. 2021). x: fp32,
// [batch, heads, length, features], features even. cos and sin: fp32, [batch, 1, length, features], with two equal
// halves. Not differentiable in cos and sin.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

// Operations of models with their own autograd functions: one pass over fp32 rows on the CPU in each direction, where
// PyTorch's own operations need many and keep intermediate results. Other dtypes and devices: see fits_row_ops().
namespace zeroshard {

// Whether these operations support `x`.
bool fits_row_ops(const at::Tensor& x);

// x / sqrt(mean(x^2) + eps) * (offset + weight), over the last dimension (Zhang and Sennrich 2019). x: fp32,
// [..., features]; weight: fp32, [features].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, float offset);

// x * cos + (-second half of x, first half of x) * sin, over the last dimension (Su et al. 2021). x: fp32, [batch,
// heads, length, features], features even; cos and sin: fp32, [batch, 1, length, features], of which both halves are
// the same. Not differentiable in cos and sin.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace zeroshard

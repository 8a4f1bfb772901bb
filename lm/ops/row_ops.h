#pragma once
#include <ATen/core/Tensor.h>

// Operations of models, with autograd functions of their own, for fp32 on the CPU. Each goes over the rows once in
// forward and once in backward. Only in a backward pass that must itself be differentiable, rms_norm() goes over them
// more often. PyTorch's own operations go over the rows many times for the same computation, and keep intermediate
// results. The operations throw ValueError for other dtypes, devices or shapes.
namespace zeroshard {

// Returns whether `x` is fp32 on the CPU. The operations support only such tensors.
bool fits_row_ops(const at::Tensor& x);

// Returns x / sqrt(mean(x^2) + eps) * (offset + weight), with the mean over the last dimension (Zhang and Sennrich
// 2019). x: fp32, [..., features]; weight: fp32, [features].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, float offset);

// Returns x * cos + concat(-second half of x, first half of x) * sin. The halves are those of the last dimension (Su et
// al. 2021). x: fp32, [batch, heads, length, features], features even. cos and sin: fp32, contiguous, [batch, 1,
// length, features], with two equal halves. Not differentiable in cos and sin.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace zeroshard

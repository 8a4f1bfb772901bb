#pragma once
#include <cstdint>

// One-pass CPU kernels over rows of fp32 features, for models, where PyTorch makes many passes in forward and backward.
// Like those of kernels.h, each runs on the calling thread, with the same results on any instruction set.
namespace zeroshard::kernels {

// Rows lie one after another: [rows, features].
struct RmsNorm {
  int64_t features;
  const float* weight;  // [features]
  float offset;         // added to the weight: 0, or 1 for models that keep weight - 1
  double eps;
};

// y = x * inverse_rms * (offset + weight), inverse_rms = 1 / sqrt(mean(x^2) + eps), one per row (Zhang and Sennrich
// 2019).
void rms_norm(const RmsNorm& norm, const float* x, int64_t rows, float* y, float* inverse_rms);
// The gradients, from `dy`, that of y. `dx` is overwritten, `dweight` ([features]) is added to; null: not wanted.
void rms_norm_backward(const RmsNorm& norm, const float* dy, const float* x, const float* inverse_rms, int64_t rows,
                       float* dx, float* dweight);

// Rotates `heads` rows of `features` (even), `x_stride` and `y_stride` floats apart. Each pair (i, i + features/2) is
// rotated by an angle (Su et al. 2021): y = x * cos + (-second half of x, first half of x) * sin. cos and sin:
// [features]. If their two halves are equal, -sin rotates back, which is the gradient.
struct Rotation {
  int64_t features;
  const float *cos, *sin;
};
void rotate(const Rotation& rotation, const float* x, int64_t x_stride, int64_t heads, float* y, int64_t y_stride);

}  // namespace zeroshard::kernels

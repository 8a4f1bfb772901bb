#pragma once
#include <cstdint>

// Declares CPU kernels that make one pass over rows of fp32 features. Models use them where PyTorch makes many passes
// in forward and backward. Like the kernels of kernels.h, each runs on the calling thread, and has the same results on
// every instruction set.
namespace zeroshard::kernels {

// The arguments of rms_norm(). Rows lie one after another: [rows, features].
struct RmsNorm {
  int64_t features;
  const float* weight;  // [features]
  float offset;         // added to the weight: 0, or 1 for models that store weight - 1
  double eps;
};

// Computes y = x * inverse_rms * (offset + weight) with inverse_rms = 1 / sqrt(mean(x^2) + eps), one per row (Zhang and
// Sennrich 2019).
void rms_norm(const RmsNorm& norm, const float* x, int64_t rows, float* y, float* inverse_rms);
// Computes gradients from `dy`, the gradient of y. Overwrites `dx`, and adds to `dweight` ([features]). Either of the
// two may be null, and is then not computed.
void rms_norm_backward(const RmsNorm& norm, const float* dy, const float* x, const float* inverse_rms, int64_t rows,
                       float* dx, float* dweight);

// The arguments of rotate(), which rotates `heads` rows of `features` (even) floats. The rows of x begin `x_stride`
// floats apart, and those of y `y_stride` floats apart. Each pair (i, i + features/2) is rotated by an angle (Su et al.
// 2021): y = x * cos + (-second half of x, first half of x) * sin. `cos` and `sin` have `features` elements each. If
// each of them has two equal halves, a rotation with -sin is the inverse, and computes the gradient.
struct Rotation {
  int64_t features;
  const float *cos, *sin;
};
void rotate(const Rotation& rotation, const float* x, int64_t x_stride, int64_t heads, float* y, int64_t y_stride);

}  // namespace zeroshard::kernels

#include "ops/row_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "device/parallel_for.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"

namespace zeroshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrainNumel = 32768;  // with fewer elements than this, a thread costs more time than it saves
// The number of rows in a chunk. For a weight's gradient, each chunk adds up what its rows contribute, and then the
// sums of the chunks are added in order. The chunks and their order are the same for any number of threads, and so is
// the gradient.
constexpr int64_t kChunkRows = 64;

int64_t num_chunks(int64_t rows) {
  return (rows + kChunkRows - 1) / kChunkRows;
}

// Spreads the chunks over the threads, and calls run(first row, number of rows) once for each chunk.
template <class Run>
void for_each_chunk(int64_t rows, int64_t features, const Run& run) {
  const int64_t grain = std::max<int64_t>(1, kGrainNumel / (kChunkRows * features));
  parallel_for(0, num_chunks(rows), grain, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk)
      run(chunk * kChunkRows, std::min(kChunkRows, rows - chunk * kChunkRows));
  });
}

struct RmsNormFunction final : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps,
                            double offset) {
    const int64_t features = x.size(-1), rows = x.numel() / features;
    at::Tensor y = at::empty_like(x), inverse_rms = at::empty({rows}, x.options());
    const kernels::RmsNorm norm{features, weight.const_data_ptr<float>(), static_cast<float>(offset), eps};
    const float* const from = x.const_data_ptr<float>();
    float* const to = y.data_ptr<float>();
    float* const inverse = inverse_rms.data_ptr<float>();
    for_each_chunk(rows, features, [&](int64_t first, int64_t count) {
      kernels::rms_norm(norm, from + first * features, count, to + first * features, inverse + first);
    });
    context->save_for_backward({x, weight, inverse_rms});
    context->saved_data["eps"] = eps;
    context->saved_data["offset"] = offset;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse_rms = saved[2];
    if (at::GradMode::is_enabled()) return differentiable_backward(context, gradients.front(), x, weight);
    const at::Tensor dy = gradients.front().contiguous();
    const int64_t features = x.size(-1), rows = x.numel() / features;
    const kernels::RmsNorm norm{features, weight.const_data_ptr<float>(),
                                static_cast<float>(context->saved_data["offset"].toDouble()),
                                context->saved_data["eps"].toDouble()};
    at::Tensor dx, parts;
    if (context->needs_input_grad(0)) dx = at::empty_like(x);
    if (context->needs_input_grad(1)) parts = at::zeros({num_chunks(rows), features}, x.options());
    const float* const up = dy.const_data_ptr<float>();
    const float* const from = x.const_data_ptr<float>();
    const float* const inverse = inverse_rms.const_data_ptr<float>();
    float* const to = dx.defined() ? dx.data_ptr<float>() : nullptr;
    float* const part = parts.defined() ? parts.data_ptr<float>() : nullptr;
    for_each_chunk(rows, features, [&](int64_t first, int64_t count) {
      kernels::rms_norm_backward(norm, up + first * features, from + first * features, inverse + first, count,
                                 to ? to + first * features : nullptr,
                                 part ? part + first / kChunkRows * features : nullptr);
    });
    return {dx, parts.defined() ? sum_of_parts(parts) : at::Tensor(), at::Tensor(), at::Tensor()};
  }

  // Computes the backward pass with differentiable operations. backward() uses it if gradients of the gradients are
  // wanted.
  static variable_list differentiable_backward(AutogradContext* context, const at::Tensor& dy, const at::Tensor& x,
                                               const at::Tensor& weight) {
    const double eps = context->saved_data["eps"].toDouble(), offset = context->saved_data["offset"].toDouble();
    const at::Tensor inverse = at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
    const at::Tensor up = dy * (weight + offset);
    const at::Tensor dx = up * inverse - x * inverse.pow(3) * (up * x).mean(-1, /*keepdim=*/true);
    return {dx, (dy * x * inverse).flatten(0, -2).sum(0), at::Tensor(), at::Tensor()};
  }

  static at::Tensor sum_of_parts(const at::Tensor& parts) {
    at::Tensor sum = at::zeros({parts.size(1)}, parts.options());
    std::vector<const void*> pieces;
    for (int64_t i = 0; i < parts.size(0); ++i) pieces.push_back(parts.const_data_ptr<float>() + i * parts.size(1));
    if (!pieces.empty())
      kernels::sum_in_order(pieces, DType::kFloat32, 1, sum.data_ptr(), DType::kFloat32, false, sum.numel());
    return sum;
  }
};

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor dense = x.stride(3) == 1 ? x : x.contiguous();
  at::Tensor y = at::empty_like(dense);
  const int64_t batch = x.size(0), heads = x.size(1), length = x.size(2), features = x.size(3);
  const float* const from = dense.const_data_ptr<float>();
  float* const to = y.data_ptr<float>();
  const float* const cosines = cos.const_data_ptr<float>();
  const float* const sines = sin.const_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(1, kGrainNumel / (heads * features));
  parallel_for(0, batch * length, grain, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      const int64_t row = place / length, at = place % length;
      const kernels::Rotation rotation{features, cosines + place * features, sines + place * features};
      kernels::rotate(rotation, from + row * dense.stride(0) + at * dense.stride(2), dense.stride(1), heads,
                      to + row * y.stride(0) + at * y.stride(2), y.stride(1));
    }
  });
  return y;
}

struct RotateFunction final : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return rotated(x, cos, sin);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {RotateFunction::apply(gradients.front(), saved[0], -saved[1]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool fits_row_ops(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, float offset) {
  ZS_CHECK(fits_row_ops(x) && fits_row_ops(weight) && weight.dim() == 1 && x.dim() > 0 && x.size(-1) > 0 &&
               x.size(-1) == weight.size(0),
           "rms_norm of ", x.toString(), " [", x.sizes(), "] with a weight ", weight.toString(), " [", weight.sizes(),
           "]");
  return RmsNormFunction::apply(x.contiguous(), weight.contiguous(), eps, static_cast<double>(offset));
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto fits = [&](const at::Tensor& angle) {
    return fits_row_ops(angle) && angle.is_contiguous() &&
           angle.sizes().equals(at::IntArrayRef({x.size(0), 1, x.size(2), x.size(3)}));
  };
  ZS_CHECK(
      fits_row_ops(x) && x.dim() == 4 && x.size(1) > 0 && x.size(3) > 0 && x.size(3) % 2 == 0 && fits(cos) && fits(sin),
      "rotate of ", x.toString(), " [", x.sizes(), "] by ", cos.toString(), " [", cos.sizes(), "] and [", sin.sizes(),
      "]");
  return RotateFunction::apply(x, cos, sin);
}

}  // namespace zeroshard

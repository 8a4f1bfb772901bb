#include <ATen/ops/addmm.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "optim/matrix_rule.h"

namespace zeroshard {
namespace {

// Orthogonalises a matrix by torch.optim.Muon's operations, in the same order, so that the result has the same bits.
at::Tensor newton_schulz(const at::Tensor& matrix, const ParamGroupOptions& options) {
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  const bool is_tall = matrix.size(0) > matrix.size(1);
  if (is_tall) x = x.t();
  x.div_(at::linalg_vector_norm(x, 2).clamp_min(options.eps));
  for (int i = 0; i < int(options.ns_steps); ++i) {
    const at::Tensor gram = x.matmul(x.t());
    const at::Tensor update = at::addmm(gram, gram, gram, /*beta=*/options.ns_b, /*alpha=*/options.ns_c);
    x = at::addmm(x, update, x, /*beta=*/options.ns_a);
  }
  return is_tall ? x.t() : x;
}

// Orthogonalises a matrix as DeepSpeed's "gram" variant does. X is the matrix, transposed if it has more rows than
// columns. If X is square, iterates on X itself. Otherwise iterates on X X^T, which is smaller than X, and collects the
// steps in a matrix Q. The result is Q X. Once, after two steps, replaces X by Q X, computes X X^T anew, and begins a
// new Q.
at::Tensor gram_newton_schulz(const at::Tensor& matrix, const ParamGroupOptions& options) {
  const auto compute = matrix.is_cpu() ? at::kFloat : at::kHalf;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  const double a = options.ns_a, b = options.ns_b, c = options.ns_c;
  const int steps = int(options.ns_steps), restart = 2;
  at::Tensor x = is_tall ? matrix.t() : matrix;
  x = x.div(at::linalg_vector_norm(x, 2).add(options.eps)).to(compute);
  if (x.size(1) <= x.size(0)) {
    for (int i = 0; i < steps; ++i) {
      const at::Tensor gram = x.matmul(x.t());
      x = x.mul(a).add(gram.mul(b).add(gram.mul(c).matmul(gram)).matmul(x));
    }
    return is_tall ? x.t() : x;
  }
  at::Tensor r = x.matmul(x.t()), q;
  for (int i = 0; i < steps; ++i) {
    if (i == restart) {
      x = q.matmul(x);
      r = x.matmul(x.t());
      q = at::Tensor();
    }
    const at::Tensor z = r.mul(b).add(r.mul(c).matmul(r));
    if (q.defined()) {
      q = q.mul(a).add(z.matmul(q));
    } else {
      q = z.clone();
      q.diagonal().add_(a);
    }
    if (i + 1 < steps && i + 1 != restart) {
      const at::Tensor rz = r.mul(a).add(z.matmul(r));
      r = rz.mul(a).add(z.matmul(rz));
    }
  }
  if (!q.defined()) return is_tall ? x.t() : x;  // no step was made
  return is_tall ? x.t().matmul(q.t()) : q.matmul(x);
}

class Muon final : public MatrixRule {
 public:
  at::Tensor accumulate(const at::Tensor& state, const at::Tensor& grad, const ParamGroupOptions& o) const override {
    state.lerp_(grad, 1 - o.momentum);
    return o.nesterov ? grad.lerp(state, o.momentum) : state;
  }
  at::Tensor transform(const at::Tensor& matrix, const ParamGroupOptions& options) const override {
    return options.ns_gram ? gram_newton_schulz(matrix, options) : newton_schulz(matrix, options);
  }
  double rate_factor(const MatrixShape& shape, const ParamGroupOptions& options) const override {
    const auto rows = double(shape.rows), cols = double(shape.cols);
    if (options.rate_by_rms) return 0.2 * std::sqrt(std::max(rows, cols));
    return options.rate_by_rows ? std::sqrt(std::max(1.0, rows / cols)) : 1;
  }
};

}  // namespace

const MatrixRule& matrix_rule(OptimizerConfig::Type type) {
  static const Muon muon;
  ZS_CHECK(type == OptimizerConfig::Type::kMuon, "the optimizer updates element by element");
  return muon;
}

void apply_matrix_update(const at::Tensor& weights, const at::Tensor& update, const ParamGroupOptions& options,
                         double rate_factor) {
  weights.mul_(1 - options.lr * options.weight_decay);
  weights.add_(update, -(options.lr * rate_factor));
}

}  // namespace zeroshard

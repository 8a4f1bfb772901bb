#include "ops/row_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes).set_requires_grad(true);
}

// The gradients of `inputs` that `output` gives, for a fixed gradient of its own.
std::vector<at::Tensor> gradients(const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
  at::Tensor up = at::empty_like(output, at::MemoryFormat::Contiguous);
  for (int64_t i = 0; i < up.numel(); ++i) up.data_ptr<float>()[i] = static_cast<float>((i * 37) % 101) / 50 - 1;
  return torch::autograd::grad({output}, inputs, {up});
}

void expect_close(const at::Tensor& got, const at::Tensor& want) {
  EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-5)) << (got - want).abs().max().item<float>();
}

at::Tensor composed_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * (offset + weight);
}

TEST(RowOps, RmsNormAndItsGradientsAreThoseOfPlainOperations) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 5, 48}, {200, 33}, {1, 1}, {2, 70, 4, 16}}) {
    for (const float offset : {0.0f, 1.0f}) {
      const at::Tensor x = leaf(sizes), weight = leaf({sizes.back()});
      const at::Tensor got = rms_norm(x, weight, 1e-5, offset), want = composed_norm(x, weight, 1e-5, offset);
      expect_close(got, want);
      const auto got_grads = gradients(got, {x, weight}), want_grads = gradients(want, {x, weight});
      expect_close(got_grads[0], want_grads[0]);
      expect_close(got_grads[1], want_grads[1]);
    }
  }
}

TEST(RowOps, FrozenInputsGetNoGradients) {
  const at::Tensor x = leaf({4, 32}), weight = at::randn({32});
  const at::Tensor frozen_weight = rms_norm(x, weight, 1e-5, 0);
  expect_close(gradients(frozen_weight, {x})[0], gradients(composed_norm(x, weight, 1e-5, 0), {x})[0]);
  const at::Tensor trained = leaf({32});
  const at::Tensor frozen_x = rms_norm(x.detach(), trained, 1e-5, 0);
  expect_close(gradients(frozen_x, {trained})[0], gradients(composed_norm(x.detach(), trained, 1e-5, 0), {trained})[0]);
}

TEST(RowOps, NoBitDependsOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  const at::Tensor x = leaf({900, 160}), weight = leaf({160}), q = leaf({3, 8, 300, 32});
  const at::Tensor angles = at::randn({3, 1, 300, 16}), cos = at::cat({angles, angles}, -1).cos(), sin = cos.sin();
  const auto run = [&](int count) {
    at::set_num_threads(count);
    const at::Tensor y = rms_norm(x, weight, 1e-5, 1), turned = rotate(q, cos, sin);
    std::vector<at::Tensor> all = gradients(y, {x, weight});
    all.insert(all.end(), {y.detach(), turned.detach(), gradients(turned, {q})[0]});
    return all;
  };
  const auto one = run(1);
  for (const int count : {2, 3}) {
    const auto many = run(count);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], many[i])) << i << ", " << count << " threads";
  }
  at::set_num_threads(threads);
}

TEST(RowOps, RotateAndItsGradientAreThoseOfPlainOperations) {
  const at::Tensor angles = at::randn({2, 1, 7, 6}), cos = at::cat({angles, angles}, -1).cos();
  const at::Tensor sin = at::cat({angles, angles}, -1).sin();
  const at::Tensor projected = leaf({2, 7, 3, 12});
  for (const at::Tensor& x : {projected.transpose(1, 2), projected.transpose(1, 2).contiguous(),
                              at::cat({projected, projected}, -1).slice(-1, 0, 24, 2).transpose(1, 2)}) {
    const auto halves = x.chunk(2, -1);
    const at::Tensor want = x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
    const at::Tensor got = rotate(x, cos, sin);
    EXPECT_TRUE(at::equal(got, want));
    expect_close(gradients(got, {projected})[0], gradients(want, {projected})[0]);
  }
}

TEST(RowOps, GradientsHaveGradients) {
  const auto second = [](const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
    const auto first = torch::autograd::grad({output.pow(3).sum()}, inputs, {}, std::nullopt, /*create_graph=*/true);
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& each : first) sum = sum + each.square().sum();
    return torch::autograd::grad({sum}, inputs);
  };
  const at::Tensor x = leaf({3, 4, 24}), weight = leaf({24});
  const auto norm = second(rms_norm(x, weight, 1e-5, 1), {x, weight});
  const auto want_norm = second(composed_norm(x, weight, 1e-5, 1), {x, weight});
  for (size_t i = 0; i < norm.size(); ++i) EXPECT_TRUE(at::allclose(norm[i], want_norm[i], 1e-3, 1e-3)) << i;
  const at::Tensor angles = at::randn({2, 1, 5, 4}), cos = at::cat({angles, angles}, -1).cos();
  const at::Tensor sin = at::cat({angles, angles}, -1).sin(), q = leaf({2, 3, 5, 8});
  const auto halves = q.chunk(2, -1);
  const auto turned = second(rotate(q, cos, sin), {q});
  const auto want_turned = second(q * cos + at::cat({-halves[1], halves[0]}, -1) * sin, {q});
  EXPECT_TRUE(at::allclose(turned[0], want_turned[0], 1e-3, 1e-3));
}

TEST(RowOps, WrongShapesAreErrors) {
  EXPECT_THROW(rms_norm(at::randn({2, 0}), at::randn({0}), 1e-5, 0), ValueError);
  EXPECT_THROW(rotate(at::randn({2, 0, 4, 6}), at::randn({2, 1, 4, 6}), at::randn({2, 1, 4, 6})), ValueError);

  EXPECT_THROW(rms_norm(at::randn({2, 8}), at::randn({9}), 1e-5, 0), ValueError);
  EXPECT_THROW(rms_norm(at::randn({2, 8}).to(at::kDouble), at::randn({8}), 1e-5, 0), ValueError);
  const at::Tensor x = at::randn({2, 3, 4, 6}), angle = at::randn({2, 1, 4, 6});
  EXPECT_THROW(rotate(x, angle, at::randn({2, 1, 4, 3})), ValueError);
  EXPECT_THROW(rotate(at::randn({2, 3, 4, 5}), at::randn({2, 1, 4, 5}), at::randn({2, 1, 4, 5})), ValueError);
  EXPECT_NO_THROW(rotate(x, angle, angle));
}

}  // namespace
}  // namespace zeroshard

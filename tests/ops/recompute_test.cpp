#include "ops/recompute.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "hooks/autograd_hooks.h"

namespace zeroshard {
namespace {

TEST(Recompute, GradientsAreThoseOfAPlainPass) {
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true), weight = at::randn({8, 8}).set_requires_grad(true);
  const auto forward = [&](const at::Tensor& input) { return at::tanh(input.matmul(weight)).matmul(weight); };
  const auto want = torch::autograd::grad({forward(x).square().sum()}, {x, weight});
  recompute(x, forward).square().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), want[0]));
  EXPECT_TRUE(at::equal(weight.grad(), want[1]));
}

TEST(Recompute, RunsOnceMoreInTheBackwardPassWithTheSameRandomNumbers) {
  const at::Tensor x = at::randn({64, 8}).set_requires_grad(true);
  std::vector<at::Tensor> outputs;
  std::vector<bool> in_backwards;
  const auto forward = [&](const at::Tensor& input) {
    const at::Tensor output = at::dropout(input, 0.5, true);
    outputs.push_back(output.detach());
    in_backwards.push_back(in_backward());
    return output;
  };
  const at::Tensor y = recompute(x, forward);
  const at::Tensor after = at::randn({4});
  y.sum().backward();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_TRUE(at::equal(outputs[0], outputs[1]));
  EXPECT_EQ(in_backwards, (std::vector<bool>{false, true}));
  EXPECT_TRUE(at::equal(x.grad().ne(0), outputs[0].ne(0)));
  EXPECT_FALSE(at::equal(at::randn({4}), after)) << "the backward pass must not set the generator back";
}

TEST(Recompute, ParametersWithinAreTrainedThoughTheInputIsNot) {
  const at::Tensor x = at::randn({4, 8}), weight = at::randn({8, 3}).set_requires_grad(true);
  recompute(x, [&](const at::Tensor& input) { return input.matmul(weight); }).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), x.t().matmul(at::ones({4, 3}))));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Recompute, KeepsNoGraphWithoutGradients) {
  int calls = 0;
  const at::NoGradGuard no_grad;
  const at::Tensor y = recompute(at::randn({2}).set_requires_grad(true), [&](const at::Tensor& input) {
    ++calls;
    return input * 2;
  });
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace zeroshard

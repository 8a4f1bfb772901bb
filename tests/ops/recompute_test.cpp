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

// The input is given away, and asked for once in a pass, or in each pass that keeps its graph.
TEST(Recompute, TheInputMayBeKeptElsewhere) {
  const at::Tensor x = at::randn({4, 8}).set_requires_grad(true), weight = at::randn({8, 8}).set_requires_grad(true);
  const auto forward = [&](const at::Tensor& input) { return at::tanh(input.matmul(weight)); };
  const auto want = torch::autograd::grad({forward(x).square().sum()}, {x, weight});
  int brought = 0;
  std::weak_ptr<int> there;
  const KeepInput keep = [&](const at::Tensor& input) {
    auto elsewhere = std::make_shared<int>(0);
    there = elsewhere;
    return [&brought, elsewhere, copy = input.detach().clone()] {
      ++brought;
      return copy.clone();
    };
  };
  const at::Tensor loss = recompute(x, forward, keep).square().sum();
  EXPECT_EQ(brought, 0);
  for (const bool last : {false, true}) {
    x.mutable_grad().reset();
    weight.mutable_grad().reset();
    loss.backward({}, /*retain_graph=*/!last);
    EXPECT_TRUE(at::equal(x.grad(), want[0]));
    EXPECT_TRUE(at::equal(weight.grad(), want[1]));
    EXPECT_EQ(there.expired(), last);
  }
  EXPECT_EQ(brought, 2);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Recompute, AGraphThatIsGoneKeepsNothing) {
  const at::Tensor x = at::randn({4}).set_requires_grad(true);
  const auto elsewhere = std::make_shared<int>(0);
  const KeepInput keep = [&](const at::Tensor& input) { return [elsewhere, input] { return input; }; };
  {
    const at::Tensor y = recompute(
        x, [](const at::Tensor& input) { return input * 2; }, keep);
    EXPECT_GT(elsewhere.use_count(), 1);
  }
  EXPECT_EQ(elsewhere.use_count(), 1);
  const auto fails = [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("stop"); };
  EXPECT_THROW(recompute(x, fails, keep), std::runtime_error);
  EXPECT_EQ(elsewhere.use_count(), 1);
  const KeepInput stays = [](const at::Tensor&) { return std::function<at::Tensor()>(); };
  recompute(
      x, [](const at::Tensor& input) { return input * 2; }, stays)
      .sum()
      .backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 2.F)));
}

}  // namespace
}  // namespace zeroshard

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "hooks/autograd_hooks.h"

namespace zeroshard {
namespace {

at::Tensor leaf() {
  return at::ones({2}).requires_grad_();
}

TEST(BackwardHooks, TensorsThatAreGoneAreForgotten) {
  BackwardHooks hooks;
  const at::Tensor x = leaf();
  for (int i = 0; i < 5'000; ++i) {
    hooks.add(x * 2, [](int64_t) {});
    ASSERT_LE(hooks.size(), 64U) << i;
  }
}

TEST(BackwardHooks, TensorsThatAreThereAreNot) {
  BackwardHooks hooks;
  const at::Tensor x = leaf();
  std::vector<at::Tensor> kept;
  std::vector<int> calls(300, 0);
  for (size_t i = 0; i < calls.size(); ++i) {
    hooks.add(kept.emplace_back(x * 2), [&calls, i](int64_t) { calls[i] = 10 * calls[i] + 1; });
    hooks.add(x * 3, [](int64_t) {});  // gone at once
  }
  // What was added last is called first: the entries of all of them are there.
  for (size_t i = 0; i < calls.size(); ++i) hooks.add(kept[i], [&calls, i](int64_t) { calls[i] = 10 * calls[i] + 2; });
  for (const at::Tensor& tensor : kept) tensor.sum().backward();
  EXPECT_EQ(calls, std::vector<int>(calls.size(), 21));
}

// Graphs outlive the tensors that are freed after a forward, whose addresses the next forward's tensors get.
TEST(BackwardHooks, NoTwoTensorsHaveOneNumber) {
  BackwardHooks hooks;
  const at::Tensor x = leaf();
  std::set<int64_t> numbers;
  at::Tensor sum = x * 0;
  constexpr size_t kTensors = 2'000;
  for (size_t i = 0; i < kTensors; ++i) {
    const at::Tensor output = x * 2;
    for (int module = 0; module < 2; ++module) hooks.add(output, [&](int64_t number) { numbers.insert(number); });
    sum = sum + output;
  }
  sum.sum().backward();
  EXPECT_EQ(numbers.size(), kTensors);
}

TEST(BackwardHooks, ATensorKeepsItsNumberThroughChangesInPlace) {
  BackwardHooks hooks;
  const at::Tensor x = leaf(), output = (x * 2).view({1, 2});
  std::vector<int64_t> numbers;
  const auto note = [&](int64_t number) { numbers.push_back(number); };
  hooks.add(output, note);
  output.mul_(3);
  hooks.add(output, note);
  output.sum().backward();
  ASSERT_EQ(numbers.size(), 2U);
  EXPECT_EQ(numbers[0], numbers[1]);
}

}  // namespace
}  // namespace zeroshard

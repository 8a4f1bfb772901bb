#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

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
    hooks.add(x * 2, [] {});
    ASSERT_LE(hooks.size(), 64U) << i;
  }
}

TEST(BackwardHooks, TensorsThatAreThereAreNot) {
  BackwardHooks hooks;
  const at::Tensor x = leaf();
  std::vector<at::Tensor> kept;
  std::vector<int> calls(300, 0);
  for (size_t i = 0; i < calls.size(); ++i) {
    hooks.add(kept.emplace_back(x * 2), [&calls, i] { calls[i] = 10 * calls[i] + 1; });
    hooks.add(x * 3, [] {});  // gone at once
  }
  // What was added last is called first: the entries of all of them are there.
  for (size_t i = 0; i < calls.size(); ++i) hooks.add(kept[i], [&calls, i] { calls[i] = 10 * calls[i] + 2; });
  for (const at::Tensor& tensor : kept) tensor.sum().backward();
  EXPECT_EQ(calls, std::vector<int>(calls.size(), 21));
}

}  // namespace
}  // namespace zeroshard

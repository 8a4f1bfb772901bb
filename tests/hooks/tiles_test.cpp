#include "hooks/tiles.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using Tensors = TiledCall::Tensors;
using Join = TiledCall::Join;

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::rand(sizes, dtype).requires_grad_();
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, TiledCall call) {
  call.function = [weight](const Tensors& tile) { return tile[0].matmul(weight); };
  return compute_tiled(call, {x}, {});
}

TEST(Tiles, GradientsAreThoseWithoutTiles) {
  const at::Tensor x = leaf({2, 7, 3}), weight = leaf({3, 5});
  const Tensors expected = torch::autograd::grad({x.matmul(weight).square().sum()}, {x, weight});
  for (int64_t tiles = 1; tiles <= 9; ++tiles) {
    const at::Tensor result = product(x, weight, {.tiles = tiles, .dim = 1});
    EXPECT_TRUE(result.allclose(x.matmul(weight))) << tiles;
    const Tensors found = torch::autograd::grad({result.square().sum()}, {x, weight});
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(found[i].allclose(expected[i])) << tiles;
  }
}

TEST(Tiles, NarrowGradientsAreSummedInFp32) {
  const at::Tensor x = at::ones({1024, 1}, at::kBFloat16);
  const at::Tensor weight = at::ones({1, 1}, at::kBFloat16).requires_grad_();
  product(x, weight, {.tiles = 1024}).sum().backward();
  EXPECT_EQ(weight.grad().item<float>(), 1024);
}

TEST(Tiles, AParameterGetsOneGradient) {
  const at::Tensor x = leaf({6, 3}), weight = leaf({3, 5});
  int calls = 0;
  weight.register_hook([&](const at::Tensor& grad) {
    ++calls;
    return 2 * grad;
  });
  product(x, weight, {.tiles = 3}).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(weight.grad().allclose(2 * x.detach().sum(0).unsqueeze(1).expand({3, 5})));
}

TEST(Tiles, GradientsAtOnceFollowThatOfTheResult) {
  const at::Tensor x = leaf({6, 3}), weight = leaf({3, 5});
  const auto mean = [&](const Tensors& tile) { return tile[0].matmul(weight).square().mean(); };
  const Tensors expected = torch::autograd::grad({3 * x.matmul(weight).square().mean()}, {x, weight});
  for (const bool at_once : {false, true}) {
    int calls = 0;
    const auto counted = [&](const Tensors& tile) { return ++calls, mean(tile); };
    const at::Tensor loss =
        compute_tiled({.function = counted, .tiles = 3, .join = Join::kMean, .at_once = at_once}, {x}, {});
    const Tensors found = torch::autograd::grad({3 * loss}, {x, weight}, {}, /*retain_graph=*/true);
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(found[i].allclose(expected[i])) << at_once;
    EXPECT_EQ(calls, at_once ? 3 : 6);
    if (at_once) {
      EXPECT_THROW(torch::autograd::grad({loss}, {x}), StateError);
    }
  }
}

TEST(Tiles, RandomNumbersAreTheSameInBothPasses) {
  const at::Tensor x = leaf({6, 64});
  at::manual_seed(1);
  const at::Tensor result = compute_tiled(
      {.function = [](const Tensors& tile) { return at::dropout(tile[0], 0.5, true); }, .tiles = 3}, {x}, {});
  at::rand({5});  // what comes between the passes
  result.sum().backward();
  EXPECT_TRUE((x.grad() != 0).equal(result != 0));
}

TEST(Tiles, AParameterOfALaterTileIsAnError) {
  const Tensors weights = {leaf({}), leaf({})};
  size_t calls = 0;
  const TiledCall call{.function = [&](const Tensors& tile) { return tile[0] * weights[calls++ % 2]; }, .tiles = 2};
  EXPECT_THROW(compute_tiled(call, {leaf({4})}, {}).sum().backward(), StateError);
  compute_tiled(call, {leaf({4})}, weights).sum().backward();
  EXPECT_TRUE(weights[1].grad().defined());
}

TEST(Tiles, AParameterThatChangesBetweenThePassesIsAnError) {
  const at::Tensor x = leaf({6, 3}), weight = leaf({3, 5});
  const at::Tensor result = product(x, weight, {.tiles = 3});
  {
    const at::NoGradGuard no_graph;
    weight.add_(1);
  }
  EXPECT_THROW(result.sum().backward(), StateError);
}

TEST(Tiles, WrongArgumentsAreNamed) {
  const at::Tensor x = leaf({6, 3}), weight = leaf({3, 5});
  EXPECT_THROW(product(x, weight, {.tiles = 0}), ValueError);
  EXPECT_THROW(product(x, weight, {.tiles = 2, .dim = 2}), ValueError);
  EXPECT_THROW(product(x, weight, {.tiles = 2, .num_cut = 2}), ValueError);
  EXPECT_THROW(product(x, weight, {.tiles = 2, .join = Join::kSum}), ValueError);  // not of scalars
  EXPECT_THROW(product(x, weight, {.tiles = 2, .at_once = true}), ValueError);
  const TiledCall shorter{.function = [](const Tensors& tile) { return tile[0].narrow(0, 0, 1); }, .tiles = 3};
  EXPECT_THROW(compute_tiled(shorter, {x}, {}), ValueError);
}

}  // namespace
}  // namespace zeroshard

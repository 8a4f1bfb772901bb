#include "device/device_squares.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "layout/shard_layout.h"

namespace zeroshard {
namespace {

ExactSum squares_of(const std::vector<at::Tensor>& tensors) {
  return sum_of_squares(tensors);
}

// As documented: blocks in fp64 by halves, blocks exactly.
ExactSum reference(const at::Tensor& flat) {
  const at::Tensor values = flat.to(at::kDouble).contiguous();
  ExactSum sum;
  for (int64_t begin = 0; begin < values.numel(); begin += kBlockNumel) {
    std::vector<double> block(size_t{kBlockNumel}, 0.0);
    for (int64_t i = begin; i < std::min(values.numel(), begin + kBlockNumel); ++i) {
      const double value = values.const_data_ptr<double>()[i];
      block[size_t(i - begin)] = value * value;
    }
    for (size_t half = block.size() / 2; half > 0; half /= 2)
      for (size_t i = 0; i < half; ++i) block[i] += block[i + half];
    sum.add(block[0]);
  }
  return sum;
}

at::Tensor values_of_all_sizes(int64_t numel) {
  const at::Tensor exponents = at::rand({numel}, at::kDouble).mul(80).sub(40);
  return at::rand({numel}, at::kDouble).sub(0.5).mul(exponents.exp2()).to(at::kFloat);
}

TEST(DeviceSquares, AreTheSumThatIsDocumented) {
  for (const int64_t numel : {1, 1023, 1024, 1025, 5000, 4096 * 1024 + 7}) {
    const at::Tensor values = values_of_all_sizes(numel);
    EXPECT_EQ(squares_of({values}).value(), reference(values).value()) << numel;
    const at::Tensor half = values.to(at::kBFloat16);
    EXPECT_EQ(squares_of({half}).value(), reference(half).value()) << numel;
  }
}

TEST(DeviceSquares, DoNotDependOnWhereBlocksAreCut) {
  const at::Tensor values = values_of_all_sizes(40 * kBlockNumel + 5);
  const double expected = squares_of({values}).value();
  for (const int64_t cut : {1, 7, 39, 40}) {
    const at::Tensor first = values.slice(0, 0, cut * kBlockNumel), rest = values.slice(0, cut * kBlockNumel);
    EXPECT_EQ(squares_of({first, rest}).value(), expected) << cut;
    ExactSum apart = squares_of({rest});
    apart.add(squares_of({first}));
    EXPECT_EQ(apart.value(), expected) << cut;
  }
}

TEST(DeviceSquares, AreExactForTheSmallestAndTheLargest) {
  const float tiny = std::numeric_limits<float>::denorm_min(), huge = std::numeric_limits<float>::max();
  EXPECT_EQ(squares_of({at::full({1}, tiny)}).value(), double(tiny) * double(tiny));
  EXPECT_EQ(squares_of({at::full({3}, huge)}).value(), 3 * (double(huge) * double(huge)));
  ExactSum both = squares_of({at::full({1}, tiny), at::full({1}, huge)});
  ExactSum minus;
  minus.add(-double(huge) * double(huge));
  both.add(minus);
  EXPECT_EQ(both.value(), double(tiny) * double(tiny));
}

TEST(DeviceSquares, SayWhenAValueIsNotFinite) {
  for (const double bad : {double(INFINITY), -double(INFINITY), double(NAN), -double(NAN)}) {
    at::Tensor values = at::rand({3000});
    values[2500] = bad;
    EXPECT_FALSE(squares_of({values}).is_finite()) << bad;
  }
  EXPECT_TRUE(squares_of({at::rand({3000})}).is_finite());
}

TEST(DeviceSquares, OfNothingAreNothing) {
  EXPECT_EQ(squares_of({}).value(), 0);
  EXPECT_EQ(squares_of({at::rand({0})}).value(), 0);
  EXPECT_EQ(squares_of({at::rand({0}), at::full({2}, 2.0F), at::rand({0})}).value(), 8);
}

}  // namespace
}  // namespace zeroshard

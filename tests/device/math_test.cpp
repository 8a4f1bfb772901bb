#include "device/math.h"

#include "device/device_squares.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device/kernels_on_device.h"
#include "support/random.h"
#include "support/tree_sum.h"

namespace zeroshard {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr int64_t kSizes[] = {0, 1, 1023, 1024, 4099, 70'001};

// Values whose fp32 sums depend on their order, exact in every 16-bit type.
at::Tensor random_tensor(int64_t numel, at::ScalarType type, uint64_t seed) {
  const at::Tensor values = at::empty({numel}, at::kFloat);
  testing::Random random(seed);
  for (float& value : std::span(values.data_ptr<float>(), size_t(numel))) {
    const auto whole = float(random.between(-63, 63));
    value = whole / float(1 << random.between(1, 10));
  }
  return values.to(type);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.equal(b);
}

TEST(Math, PackIsOneRoundingOfTheScaledValue) {
  for (const auto from : kTypes) {
    for (const auto to : kTypes) {
      for (const int64_t numel : kSizes) {
        SCOPED_TRACE(::testing::Message() << from << " to " << to << ", " << numel);
        const at::Tensor in = random_tensor(numel, from, 1), before = random_tensor(numel, to, 2);
        const at::Tensor scaled = in.to(at::kFloat) * 0.3F;
        at::Tensor out = before.clone();
        math::pack({in}, out, 0.3F);
        EXPECT_TRUE(same_bits(out, scaled.to(to)));
        out = before.clone();
        math::pack({in}, out, 0.3F, /*add=*/true);
        EXPECT_TRUE(same_bits(out, (before.to(at::kFloat) + scaled).to(to)));
      }
    }
  }
}

TEST(Math, PackFlattensWhatIsNotContiguous) {
  const at::Tensor in = random_tensor(12, at::kFloat, 1).view({3, 4}).t();
  const at::Tensor out = at::empty({12}, at::kBFloat16);
  math::pack({in}, out, 1);
  EXPECT_TRUE(same_bits(out, in.contiguous().view({-1}).to(at::kBFloat16)));
}

struct Pieces {
  explicit Pieces(int count, int64_t numel, at::ScalarType type) {
    for (int i = 0; i < count; ++i) tensors.push_back(random_tensor(numel, type, uint64_t(i) + 10));
    for (const at::Tensor& tensor : tensors) pointers.push_back(tensor.const_data_ptr());
  }
  // Added as a tree in fp32.
  at::Tensor sum() const {
    std::vector<at::Tensor> values;
    for (const at::Tensor& tensor : tensors) values.push_back(tensor.to(at::kFloat));
    return testing::tree_sum<at::Tensor>(values);
  }
  std::vector<at::Tensor> tensors;
  std::vector<const void*> pointers;
};

TEST(Math, SumsInTheOrderOfThePieces) {
  for (const auto from : kTypes) {
    for (const auto to : kTypes) {
      for (const int64_t numel : kSizes) {
        SCOPED_TRACE(::testing::Message() << from << " to " << to << ", " << numel);
        const Pieces pieces(13, numel, from);
        const at::Tensor before = random_tensor(numel, to, 3), scaled = pieces.sum() * 0.2F;
        for (const bool accumulate : {false, true}) {
          const at::Tensor expected = (accumulate ? before.to(at::kFloat) + scaled : scaled).to(to);
          at::Tensor out = before.clone();
          ExactSum squares, reference;
          math::sum_in_order(pieces.pointers, from, 0.2F, out, accumulate, &squares);
          EXPECT_TRUE(same_bits(out, expected));
          math::add_sum_of_squares(expected, reference);
          EXPECT_EQ(squares.value(), reference.value());
          out = before.clone();
          math::aten::sum_in_order(pieces.pointers, from, 0.2F, out, accumulate);
          EXPECT_TRUE(same_bits(out, expected));
        }
      }
    }
  }
}

TEST(Math, OnePieceInItsPlaceIsLeftAndSquared) {
  const at::Tensor value = random_tensor(5000, at::kFloat, 4), before = value.clone();
  const void* const piece = value.const_data_ptr();
  ExactSum squares, reference;
  math::sum_in_order({&piece, 1}, at::kFloat, 1, value, /*accumulate=*/false, &squares);
  EXPECT_TRUE(value.equal(before));
  math::add_sum_of_squares(before, reference);
  EXPECT_EQ(squares.value(), reference.value());
  math::sum_in_order({&piece, 1}, at::kFloat, 0.5F, value, /*accumulate=*/false);
  EXPECT_TRUE(value.equal(before * 0.5F));
}

TEST(Math, PackWithLibTorchGivesTheSameBits) {
  for (const auto from : kTypes) {
    for (const auto to : kTypes) {
      for (const float scale : {1.0F, 0.3F}) {
        for (const bool add : {false, true}) {
          const at::Tensor in = random_tensor(3000, from, 1);
          at::Tensor ours = random_tensor(3000, to, 2);
          const at::Tensor theirs = ours.clone();
          math::pack({in}, ours, scale, add);
          math::aten::pack(in, theirs, scale, add);
          EXPECT_TRUE(same_bits(ours, theirs)) << from << " to " << to << " * " << scale << (add ? ", added" : "");
        }
      }
    }
  }
}

// A backward with create_graph=True leaves gradients that carry a graph.
TEST(Math, PackWithLibTorchKeepsNoGraph) {
  const at::Tensor leaf = at::ones({4}).set_requires_grad(true), grad = leaf * 2, whole = at::zeros({8});
  for (const float scale : {1.0F, 0.5F})
    for (const bool add : {false, true}) math::aten::pack(grad, whole.slice(0, 2, 6), scale, add);
  EXPECT_FALSE(whole.requires_grad());
  EXPECT_EQ(whole[2].item<float>(), 2);
}

TEST(Math, SquaresDoNotDependOnTheCutOrOnThreads) {
  const at::Tensor flat = random_tensor(1024 * 211 + 5, at::kFloat, 5) / 3;
  ExactSum whole;
  math::add_sum_of_squares(flat, whole);
  for (const int pieces : {2, 3, 7, 1000}) {
    ExactSum sum;
    for (int piece = 0; piece < pieces; ++piece) {
      math::add_sum_of_squares(flat.slice(0, flat.numel() * piece / pieces, flat.numel() * (piece + 1) / pieces), sum);
    }
    EXPECT_EQ(sum.value(), whole.value()) << pieces;
  }
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  ExactSum alone;
  math::add_sum_of_squares(flat, alone);
  at::set_num_threads(threads);
  EXPECT_EQ(alone.value(), whole.value());
}

TEST(Math, SquaresAreExactWhereDoublesAre) {
  for (const auto type : kTypes) {
    for (const int64_t numel : kSizes) {
      const at::Tensor flat = random_tensor(numel, type, 6);  // 6 bits of fraction: fp64 adds their squares exactly
      const at::Tensor values = flat.to(at::kFloat);
      double expected = 0;
      for (const float value : std::span(values.const_data_ptr<float>(), size_t(numel)))
        expected += double(value) * value;
      ExactSum ours, theirs;
      math::add_sum_of_squares(flat, ours);
      theirs.add(sum_of_squares(std::vector<at::Tensor>{flat}));
      EXPECT_EQ(ours.value(), expected) << type << ", " << numel;
      EXPECT_EQ(theirs.value(), expected) << type << ", " << numel;
    }
  }
}

TEST(Math, SquaresOfLibTorchDoNotDependOnTheCut) {
  const at::Tensor flat = random_tensor(1024 * 9 + 17, at::kFloat, 7) / 3;
  ExactSum whole, parts;
  whole.add(sum_of_squares(std::vector<at::Tensor>{flat}));
  parts.add(sum_of_squares(std::vector<at::Tensor>{flat.slice(0, 0, 4096)}));
  parts.add(sum_of_squares(std::vector<at::Tensor>{flat.slice(0, 4096, flat.numel())}));
  EXPECT_EQ(parts.value(), whole.value());
}

TEST(Math, SquaresOfNonFiniteValuesAreFlagged) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    const at::Tensor flat = at::zeros({3000}, at::kFloat);
    flat[2999] = bad;
    ExactSum ours, theirs;
    math::add_sum_of_squares(flat, ours);
    theirs.add(sum_of_squares(std::vector<at::Tensor>{flat}));
    EXPECT_FALSE(ours.is_finite());
    EXPECT_FALSE(theirs.is_finite());
  }
}

TEST(Math, CodesOfLibTorchAreThoseOfTheKernels) {
  kernels::test::expect_codes(at::kCPU, math::aten::encode, math::aten::decode);
}

}  // namespace
}  // namespace zeroshard

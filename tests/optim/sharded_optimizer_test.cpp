#include "optim/sharded_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "optim/aten_step.h"
#include "support/random_tensor.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::random_tensor;
using Type = OptimizerConfig::Type;

// Two groups of a unit, in fp32 and bf16; one parameter is larger than the grain of the thread pool.
const std::vector<std::vector<int64_t>> kNumels = {{1500, 3, 0, 2047, 70'000, 1}, {900, 5000, 64}};
const std::vector<std::vector<int>> kParamGroups = {{0, 1, 1, 0, 1, 0}, {1, -1, 0}};
constexpr DType kDtypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr int kSteps = 4;

struct Case {
  Type type = Type::kAdamW;
  std::vector<ParamGroupOptions> groups;
  std::string name;
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Type type : {Type::kAdam, Type::kAdamW, Type::kSgd, Type::kLion, Type::kAdagrad}) {
    for (const bool maximize : {false, true}) {
      ParamGroupOptions a;
      a.lr = 0.01;
      a.weight_decay = 0.1;
      a.momentum = 0.9;
      a.dampening = maximize ? 0.2 : 0;
      a.nesterov = !maximize;
      a.lr_decay = 0.01;
      a.maximize = maximize && type != Type::kLion;
      a.decoupled_weight_decay = type == Type::kAdamW;
      ParamGroupOptions b = a;
      b.lr = 0.003;
      b.weight_decay = 0;
      b.beta1 = 0.8;
      b.bias_correction = maximize;
      result.push_back({type, {a, b}, std::to_string(int(type)) + (maximize ? " maximize" : "")});
    }
  }
  return result;
}

// Values of group g at its flat positions, followed by padding.
at::Tensor flat(const FlatGroup& group, uint64_t seed, size_t g) {
  const at::Tensor result = at::zeros({group.layout.padded_numel()}, at::kFloat);
  for (size_t i = 0; i < group.params.size(); ++i) {
    const Range range = group.layout.param(i);
    result.slice(0, range.begin, range.end).copy_(random_tensor({range.size()}, seed * 100 + g * 10 + i));
  }
  return result;
}

// Parameters without a gradient in this step.
std::vector<std::vector<bool>> has_grad(int step) {
  std::vector<std::vector<bool>> result;
  for (size_t g = 0; g < kNumels.size(); ++g) {
    result.emplace_back();
    for (size_t i = 0; i < kNumels[g].size(); ++i) result.back().push_back((size_t(step) + g + i) % 3 != 0);
  }
  return result;
}

std::vector<FlatGroup> make_groups(int world_size) {
  std::vector<FlatGroup> groups;
  for (size_t g = 0; g < kNumels.size(); ++g) {
    std::vector<size_t> params(kNumels[g].size());
    for (size_t i = 0; i < params.size(); ++i) params[i] = i;
    groups.push_back({kDtypes[g], true, params, ShardLayout(kNumels[g], world_size)});
  }
  return groups;
}

// One rank's optimizer and its tensors.
struct Rank {
  Rank(const Case& test, int world_size, int rank_, bool whole_)
      : rank(rank_), whole(whole_), groups(make_groups(world_size)) {
    std::vector<ShardView> views;
    for (size_t g = 0; g < groups.size(); ++g) {
      const at::Tensor values = mine(g, flat(groups[g], 1, g));
      params.push_back(values.to(to_scalar_type(kDtypes[g]), /*non_blocking=*/false, /*copy=*/true));
      grads.push_back(at::zeros({values.numel()}, g == 0 ? at::kFloat : at::kBFloat16));
      views.push_back({&groups[g], kParamGroups[g], whole, {}, {}});
    }
    const OptimOptions options{at::kCPU, rank, test.type, num_moments(test.type, /*momentum=*/true)};
    optimizer = std::make_unique<ShardedOptimizer>(std::move(views), options, ledger);
    for (size_t g = 0; g < groups.size(); ++g) {
      if (optimizer->master(g).defined()) optimizer->master(g).copy_(mine(g, flat(groups[g], 1, g)));
      optimizer->bind(g, params[g], grads[g]);
    }
  }
  // This rank's part of a padded flat tensor.
  at::Tensor mine(size_t g, const at::Tensor& flat) const {
    const Range shard = groups[g].layout.shard(rank);
    return whole ? flat : flat.slice(0, shard.begin, shard.end);
  }
  void run(const Case& test) {
    for (int step = 0; step < kSteps; ++step) {
      for (size_t g = 0; g < groups.size(); ++g) grads[g].copy_(mine(g, flat(groups[g], uint64_t(step) + 2, g)));
      optimizer->check(test.groups);
      const auto with_grad = has_grad(step);
      for (size_t i = 0; i < groups.size(); ++i) {
        const size_t g = step % 2 == 0 ? i : groups.size() - 1 - i;  // in any order
        optimizer->update(g, test.groups, with_grad[g], 0.5F);
      }
    }
  }
  // Parameters, masters and moments, one after another.
  std::vector<at::Tensor> state(size_t g) const {
    std::vector<at::Tensor> result;
    result.push_back(params[g]);
    if (optimizer->master(g).defined()) result.push_back(optimizer->master(g));
    for (int slot = 0; slot < moments; ++slot) result.push_back(optimizer->moment(g, size_t(slot)));
    return result;
  }

  int rank;
  bool whole;
  int moments = 0;
  Ledger ledger;
  std::vector<FlatGroup> groups;
  std::vector<at::Tensor> params, grads;
  std::unique_ptr<ShardedOptimizer> optimizer;
};

class AllOptimizers : public ::testing::TestWithParam<Case> {};

TEST_P(AllOptimizers, AnySplitIntoShardsGivesTheSameBits) {
  const Case& test = GetParam();
  Rank one(test, 1, 0, /*whole=*/true);
  one.run(test);
  for (const int world_size : {2, 3, 7}) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.push_back(std::make_unique<Rank>(test, world_size, rank, /*whole=*/false));
      ranks.back()->run(test);
    }
    for (size_t g = 0; g < kNumels.size(); ++g) {
      const int64_t numel = one.groups[g].layout.numel();
      one.moments = num_moments(test.type, true);
      const std::vector<at::Tensor> expected = one.state(g);
      for (size_t i = 0; i < expected.size(); ++i) {
        std::vector<at::Tensor> parts;
        for (const auto& rank : ranks) {
          rank->moments = one.moments;
          parts.push_back(rank->state(g)[i]);
        }
        EXPECT_TRUE(at::cat(parts).slice(0, 0, numel).equal(expected[i].slice(0, 0, numel)))
            << "world " << world_size << ", group " << g << ", tensor " << i;
      }
    }
  }
}

// Every parameter by itself, with its own step count, by LibTorch's operations.
TEST_P(AllOptimizers, AgreesWithLibTorchParameterByParameter) {
  const Case& test = GetParam();
  Rank ours(test, 1, 0, /*whole=*/true);
  ours.run(test);
  const int moments = num_moments(test.type, true);
  for (size_t g = 0; g < kNumels.size(); ++g) {
    const bool has_master = kDtypes[g] != DType::kFloat32;
    for (size_t i = 0; i < kNumels[g].size(); ++i) {
      const Range range = ours.groups[g].layout.param(i);
      const auto own = [&](const at::Tensor& tensor) { return tensor.slice(0, range.begin, range.end); };
      const at::Tensor initial = own(flat(ours.groups[g], 1, g));
      UpdateTensors tensors;
      tensors.param = initial.to(to_scalar_type(kDtypes[g]), false, /*copy=*/true);
      if (has_master) tensors.master = initial.clone();
      for (int slot = 0; slot < moments; ++slot) tensors.moments.push_back(at::zeros({range.size()}, at::kFloat));
      int64_t steps = 0;
      for (int step = 0; step < kSteps; ++step) {
        if (!has_grad(step)[g][i] || kParamGroups[g][i] < 0) continue;
        tensors.grad = own(flat(ours.groups[g], uint64_t(step) + 2, g)).to(has_master ? at::kBFloat16 : at::kFloat);
        aten_step(test.type, tensors, test.groups[size_t(kParamGroups[g][i])], ++steps, 0.5F);
      }
      EXPECT_EQ(ours.optimizer->steps(g)[i], steps);
      const at::Tensor weights = has_master ? tensors.master : tensors.param;
      const at::Tensor got = own(has_master ? ours.optimizer->master(g) : ours.params[g]);
      EXPECT_TRUE(at::allclose(got, weights, 1e-6, 1e-6)) << "group " << g << ", parameter " << i;
      for (int slot = 0; slot < moments; ++slot) {
        EXPECT_TRUE(
            at::allclose(own(ours.optimizer->moment(g, size_t(slot))), tensors.moments[size_t(slot)], 1e-5, 1e-6));
      }
      if (range.size() == 0) continue;
      EXPECT_EQ(got.equal(initial), steps == 0) << "group " << g << ", parameter " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ShardedOptimizer, AllOptimizers, ::testing::ValuesIn(cases()));

TEST(ShardedOptimizer, ParametersAreTheRoundedMasters) {
  const Case test = cases()[2];
  Rank rank(test, 2, 1, /*whole=*/false);
  rank.run(test);
  EXPECT_FALSE(rank.optimizer->master(0).defined());
  const at::Tensor& master = rank.optimizer->master(1);
  EXPECT_EQ(master.scalar_type(), at::kFloat);
  EXPECT_TRUE(rank.params[1].equal(master.to(at::kBFloat16)));
  EXPECT_FALSE(master.equal(rank.params[1].to(at::kFloat)));  // it has more bits
}

TEST(ShardedOptimizer, HoldsMastersAndMomentsOfItsShardsAlone) {
  for (const int world_size : {1, 2, 3}) {
    for (const bool whole : {false, true}) {
      Rank rank(cases()[0], world_size, 0, whole);
      int64_t numel = 0, master_numel = 0;
      for (size_t g = 0; g < kNumels.size(); ++g) {
        const ShardLayout& layout = rank.groups[g].layout;
        numel += whole ? layout.padded_numel() : layout.shard_numel();
        if (g == 1) master_numel += whole ? layout.padded_numel() : layout.shard_numel();
      }
      EXPECT_EQ(rank.ledger.current().at(Category::kMoments, Tier::kDevice), numel * 4 * 2);
      EXPECT_EQ(rank.ledger.current().at(Category::kMasterWeights, Tier::kDevice), master_numel * 4);
    }
  }
}

TEST(ShardedOptimizer, SlicesCoverEveryOwnedElementOnce) {
  for (const int world_size : {1, 3}) {
    std::vector<std::vector<int64_t>> covered{std::vector<int64_t>(kNumels[0].size()),
                                              std::vector<int64_t>(kNumels[1].size())};
    for (int r = 0; r < world_size; ++r) {
      Rank rank(cases()[0], world_size, r, /*whole=*/false);
      for (const ParamSlice& slice : rank.optimizer->slices()) {
        EXPECT_EQ(slice.master.numel(), slice.grad.numel());
        EXPECT_EQ(slice.master.scalar_type(), at::kFloat);
        EXPECT_EQ(slice.param_group, kParamGroups[slice.shard][slice.index]);
        const int64_t begin = covered[slice.shard][slice.index];
        const at::Tensor initial =
            random_tensor({kNumels[slice.shard][slice.index]}, 100 + slice.shard * 10 + slice.index);
        EXPECT_TRUE(slice.master.equal(initial.slice(0, begin, begin + slice.master.numel())));
        covered[slice.shard][slice.index] += slice.master.numel();
      }
    }
    EXPECT_EQ(covered, kNumels);
  }
}

TEST(ShardedOptimizer, AnOutsideOptimizersMastersArePublished) {
  Rank rank(cases()[0], 2, 0, /*whole=*/false);
  rank.optimizer->master(1).fill_(1.0F / 3);
  rank.optimizer->publish_masters();
  EXPECT_TRUE(rank.params[1].equal(at::zeros({rank.params[1].numel()}, at::kFloat).add(1.0F / 3).to(at::kBFloat16)));
}

TEST(ShardedOptimizer, TooFewParamGroupsAreRefused) {
  Case test = cases()[0];
  Rank rank(test, 1, 0, /*whole=*/true);
  test.groups.resize(1);
  EXPECT_THROW(rank.optimizer->check(test.groups), ValueError);
}

}  // namespace
}  // namespace zeroshard

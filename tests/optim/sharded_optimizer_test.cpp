#include "optim/sharded_optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/align.h"
#include "device/cut.h"
#include "device/dtype.h"
#include "optim/aten_step.h"
#include "support/piecewise_states.h"
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
  DType moment_dtype = DType::kFloat32;
};

std::vector<Case> with_each_moment_dtype(Case test) {
  Case narrow = test, codes = test;
  narrow.moment_dtype = DType::kBFloat16;
  codes.moment_dtype = kCodes;
  return {test, narrow, codes};
}

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

UnitLayout make_unit(int world_size, bool is_coded) {
  UnitLayout unit{"unit", {}, {}};
  for (size_t g = 0; g < kNumels.size(); ++g) {
    std::vector<size_t> params;
    for (const int64_t numel : kNumels[g]) {
      params.push_back(unit.params.size());
      unit.params.push_back({{std::to_string(unit.params.size())}, {numel}, kDtypes[g], true});
    }
    const ShardLayout layout(kNumels[g], world_size, is_coded ? kScaledNumel : 1);
    unit.groups.push_back({kDtypes[g], true, params, layout, /*is_matrix=*/false, is_coded});
  }
  return unit;
}

// One rank's groups and their tensors. With `piece` their states are lent in pieces of so many elements. With `beside`
// they are placed as for late updates of a device's parameters, so fp32 parameters have master weights, too.
struct Rank {
  Rank(const Case& test, int world_size, int rank_, bool whole_, int64_t piece = 0, bool beside = false)
      : rank(rank_),
        whole(whole_),
        unit(make_unit(world_size, test.moment_dtype == kCodes)),
        optimizer(test.type, at::kCPU) {
    PlacementOptions options;
    options.world_size = world_size;
    options.stage = whole ? 0 : 1;
    options.optimizer_slots = num_moments(test.type, /*momentum=*/true);
    options.moment_dtype = test.moment_dtype;
    options.on_device = beside;
    if (beside) options.state_tier = Tier::kHost;
    const std::vector<UnitPlacement> table = place({&unit, 1}, options);
    for (size_t g = 0; g < unit.groups.size(); ++g) {
      const GroupPlacement& place = table[0].groups[g];
      const ShardLayout& layout = unit.groups[g].layout;
      const auto allocate = [&](const Stored& held) {
        return at::zeros({held.numel(layout)}, at::TensorOptions().dtype(to_scalar_type(held.dtype)));
      };
      StateTensors state;
      if (place.master_weights.extent != Extent::kNothing) state.master = allocate(place.master_weights);
      for (int slot = 0; slot < options.optimizer_slots; ++slot) {
        state.moments.push_back(allocate(place.moments));
        if (place.moments.scales) state.scales.push_back(at::zeros({place.moments.numel(layout) / kScaledNumel}));
      }
      states.push_back(state);
      std::unique_ptr<Array> keeper =
          piece > 0 ? testing::piecewise_states(state, piece) : std::make_unique<Array>(state);
      const at::Tensor values = flat(unit.groups[g], 1, g);
      groups.emplace_back(unit, g, table[0], ShardedGroup::Options{rank, g, /*users_may_write=*/false, kParamGroups[g]},
                          std::make_unique<Array>(values.to(to_scalar_type(kDtypes[g]), /*non_blocking=*/false,
                                                            /*copy=*/true)),
                          std::move(keeper));
      groups.back().write_master({0, values.numel()}, values);
      grads.push_back(at::zeros({groups.back().updated().size()}, g == 0 ? at::kFloat : at::kBFloat16));
    }
  }
  // This rank's part of a padded flat tensor.
  at::Tensor mine(size_t g, const at::Tensor& flat) const {
    return flat.slice(0, groups[g].updated().begin, groups[g].updated().end);
  }
  void run(const Case& test) {
    std::vector<ShardedGroup*> all;
    for (ShardedGroup& group : groups) all.push_back(&group);
    for (int step = 0; step < kSteps; ++step) {
      for (size_t g = 0; g < groups.size(); ++g) grads[g].copy_(mine(g, flat(unit.groups[g], uint64_t(step) + 2, g)));
      optimizer.check(all, test.groups);
      const auto with_grad = has_grad(step);
      for (size_t i = 0; i < groups.size(); ++i) {
        const size_t g = step % 2 == 0 ? i : groups.size() - 1 - i;  // in any order
        Array values(grads[g]);
        optimizer.update(groups[g], {values}, test.groups, with_grad[g], 0.5F);
      }
    }
  }
  // Does the same with updates beside the parameters. Returns the new parameters of each group.
  std::vector<at::Tensor> run_beside(const Case& test) {
    std::vector<at::Tensor> beside;
    for (size_t g = 0; g < groups.size(); ++g) beside.push_back(at::zeros_like(params(g)));
    for (int step = 0; step < kSteps; ++step) {
      for (size_t g = 0; g < groups.size(); ++g) {
        grads[g].copy_(mine(g, flat(unit.groups[g], uint64_t(step) + 2, g)));
        const auto runs = ShardedOptimizer::count_step(groups[g], has_grad(step)[g]);
        optimizer.update_beside(groups[g], grads[g], runs, test.groups, 0.5F, beside[g]);
      }
    }
    return beside;
  }
  at::Tensor params(size_t g) const { return groups[g].updated_parameters(); }
  // Parameters, masters and moments, one after another.
  std::vector<at::Tensor> state(size_t g) const {
    std::vector<at::Tensor> result = {params(g)};
    if (states[g].master.defined()) result.push_back(states[g].master);
    result.insert(result.end(), states[g].moments.begin(), states[g].moments.end());
    result.insert(result.end(), states[g].scales.begin(), states[g].scales.end());
    return result;
  }

  int rank;
  bool whole;
  UnitLayout unit;
  ShardedOptimizer optimizer;
  std::vector<ShardedGroup> groups;
  std::vector<StateTensors> states;  // behind those of the groups
  std::vector<at::Tensor> grads;
};

class AllOptimizers : public ::testing::TestWithParam<Case> {};

void expect_the_same_bits_in_any_shards(const Case& test) {
  Rank one(test, 1, 0, /*whole=*/true);
  one.run(test);
  for (const int world_size : {2, 3, 7}) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.push_back(std::make_unique<Rank>(test, world_size, rank, /*whole=*/false));
      ranks.back()->run(test);
    }
    for (size_t g = 0; g < kNumels.size(); ++g) {
      const int64_t numel = one.groups[g].layout().numel();
      const std::vector<at::Tensor> expected = one.state(g);
      for (size_t i = 0; i < expected.size(); ++i) {
        std::vector<at::Tensor> parts;
        for (const auto& rank : ranks) parts.push_back(rank->state(g)[i]);
        const bool are_scales = i >= expected.size() - one.states[g].scales.size();
        const int64_t count = are_scales ? ceil_div(numel, kScaledNumel) : numel;
        EXPECT_TRUE(at::cat(parts).slice(0, 0, count).equal(expected[i].slice(0, 0, count)))
            << "world " << world_size << ", group " << g << ", tensor " << i;
      }
    }
  }
}

// Random numbers of moments in bf16, too, and codes with their scales.
TEST_P(AllOptimizers, AnySplitIntoShardsGivesTheSameBits) {
  for (const Case& test : with_each_moment_dtype(GetParam())) {
    SCOPED_TRACE(name_of(test.moment_dtype));
    expect_the_same_bits_in_any_shards(test);
  }
}

void expect_the_same_bits_in_pieces(const Case& test) {
  for (const bool whole : {false, true}) {
    Rank expected(test, 3, 1, whole), pieces(test, 3, 1, whole, /*piece=*/test.moment_dtype == kCodes ? 1024 : 1000);
    expected.run(test);
    pieces.run(test);
    for (size_t g = 0; g < kNumels.size(); ++g)
      for (size_t i = 0; i < expected.state(g).size(); ++i)
        EXPECT_TRUE(pieces.state(g)[i].equal(expected.state(g)[i])) << "group " << g << ", tensor " << i;
  }
}

// As from a file: an update borrows what it needs, and gives it back before it borrows more.
TEST_P(AllOptimizers, StatesLentInPiecesGiveTheSameBits) {
  for (const Case& test : with_each_moment_dtype(GetParam())) {
    SCOPED_TRACE(name_of(test.moment_dtype));
    expect_the_same_bits_in_pieces(test);
  }
}

// As for a device that computes with the parameters from before, with states in memory and as from a file.
TEST_P(AllOptimizers, AnUpdateBesideTheParametersGivesTheSameBits) {
  for (const Case& test : with_each_moment_dtype(GetParam())) {
    for (const int64_t piece : {0, 1024}) {
      SCOPED_TRACE(::testing::Message() << name_of(test.moment_dtype) << " in pieces of " << piece);
      Rank expected(test, 3, 1, /*whole=*/false), late(test, 3, 1, /*whole=*/false, piece, /*beside=*/true);
      const std::vector<at::Tensor> before = {late.params(0).clone(), late.params(1).clone()};
      expected.run(test);
      const std::vector<at::Tensor> beside = late.run_beside(test);
      for (size_t g = 0; g < kNumels.size(); ++g) {
        EXPECT_TRUE(late.params(g).equal(before[g])) << "group " << g;
        const bool has_master = expected.states[g].master.defined();
        EXPECT_TRUE(late.states[g].master.equal(has_master ? expected.states[g].master : expected.params(g)));
        for (size_t slot = 0; slot < late.states[g].moments.size(); ++slot)
          EXPECT_TRUE(late.states[g].moments[slot].equal(expected.states[g].moments[slot])) << "group " << g;
        for (size_t slot = 0; slot < late.states[g].scales.size(); ++slot)
          EXPECT_TRUE(late.states[g].scales[slot].equal(expected.states[g].scales[slot])) << "group " << g;
        for (size_t i = 0; i < kNumels[g].size(); ++i) {
          const Range range = late.groups[g].state_range(i);
          if (late.groups[g].update_counts()[i] == 0) continue;
          EXPECT_TRUE(cut(beside[g], range).equal(cut(expected.params(g), range))) << "group " << g << ", " << i;
        }
      }
    }
  }
}

// They are near those in fp32, and other ones: half an ulp of bf16 is 2^-8 of a value at most, and each step adds one.
TEST_P(AllOptimizers, MomentsInBf16AreNearThoseInFp32) {
  const std::vector<Case> both = with_each_moment_dtype(GetParam());
  Rank wide(both[0], 1, 0, /*whole=*/true), narrow(both[1], 1, 0, /*whole=*/true);
  wide.run(both[0]);
  narrow.run(both[1]);
  for (size_t g = 0; g < kNumels.size(); ++g) {
    for (size_t slot = 0; slot < wide.states[g].moments.size(); ++slot) {
      const at::Tensor &expected = wide.states[g].moments[slot], &got = narrow.states[g].moments[slot];
      EXPECT_EQ(got.scalar_type(), at::kBFloat16);
      EXPECT_FALSE(got.to(at::kFloat).equal(expected));
      EXPECT_LT((got.to(at::kFloat) - expected).norm().item<double>(), 0.02 * expected.norm().item<double>());
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
      const Range range = ours.unit.groups[g].layout.param(i);
      const auto own = [&](const at::Tensor& tensor) { return tensor.slice(0, range.begin, range.end); };
      const at::Tensor initial = own(flat(ours.unit.groups[g], 1, g));
      UpdateTensors tensors;
      tensors.param = initial.to(to_scalar_type(kDtypes[g]), false, /*copy=*/true);
      if (has_master) tensors.master = initial.clone();
      for (int slot = 0; slot < moments; ++slot) tensors.moments.push_back(at::zeros({range.size()}, at::kFloat));
      int64_t steps = 0;
      for (int step = 0; step < kSteps; ++step) {
        if (!has_grad(step)[g][i] || kParamGroups[g][i] < 0) continue;
        tensors.grad =
            own(flat(ours.unit.groups[g], uint64_t(step) + 2, g)).to(has_master ? at::kBFloat16 : at::kFloat);
        aten_step(test.type, tensors, test.groups[size_t(kParamGroups[g][i])], ++steps, 0.5F);
      }
      EXPECT_EQ(ours.groups[g].update_counts()[i], steps);
      const at::Tensor weights = has_master ? tensors.master : tensors.param;
      const at::Tensor got = own(has_master ? ours.states[g].master : ours.params(g));
      EXPECT_TRUE(at::allclose(got, weights, 1e-6, 1e-6)) << "group " << g << ", parameter " << i;
      for (int slot = 0; slot < moments; ++slot) {
        EXPECT_TRUE(at::allclose(own(ours.states[g].moments[size_t(slot)]), tensors.moments[size_t(slot)], 1e-5, 1e-6));
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
  EXPECT_FALSE(rank.states[0].master.defined());
  const at::Tensor& master = rank.states[1].master;
  EXPECT_TRUE(rank.params(1).equal(master.to(at::kBFloat16)));
  EXPECT_FALSE(master.equal(rank.params(1).to(at::kFloat)));  // it has more bits
}

TEST(ShardedOptimizer, SlicesCoverEveryOwnedElementOnce) {
  for (const int world_size : {1, 3}) {
    std::vector<std::vector<int64_t>> covered{std::vector<int64_t>(kNumels[0].size()),
                                              std::vector<int64_t>(kNumels[1].size())};
    for (int r = 0; r < world_size; ++r) {
      Rank rank(cases()[0], world_size, r, /*whole=*/false);
      for (size_t g = 0; g < rank.groups.size(); ++g) {
        for (const ParamSlice& slice : slices(rank.groups[g])) {
          EXPECT_EQ(slice.master.scalar_type(), at::kFloat);
          const int64_t begin = covered[g][slice.index];
          EXPECT_EQ(slice.begin, begin);
          const at::Tensor initial = random_tensor({kNumels[g][slice.index]}, 100 + g * 10 + slice.index);
          EXPECT_TRUE(slice.master.equal(initial.slice(0, begin, begin + slice.master.numel())));
          covered[g][slice.index] += slice.master.numel();
        }
      }
    }
    EXPECT_EQ(covered, kNumels);
  }
}

TEST(ShardedOptimizer, SlicesOfStatesThatAreNotInMemoryAreCopies) {
  Rank here(cases()[0], 2, 0, /*whole=*/false), elsewhere(cases()[0], 2, 0, /*whole=*/false, /*piece=*/10);
  const std::vector<ParamSlice> expected = slices(here.groups[0]);
  const std::vector<ParamSlice> copies = slices(elsewhere.groups[0]);
  ASSERT_EQ(copies.size(), expected.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    ASSERT_EQ(copies[i].moments.size(), expected[i].moments.size());
    for (size_t slot = 0; slot < copies[i].moments.size(); ++slot) {
      EXPECT_TRUE(copies[i].moments[slot].equal(expected[i].moments[slot]));
      copies[i].moments[slot].add_(1);
      EXPECT_TRUE(slices(elsewhere.groups[0])[i].moments[slot].equal(expected[i].moments[slot]));
    }
  }
}

TEST(ShardedOptimizer, SlicesOfMomentsInBf16AreCopiesInFp32) {
  const Case test = with_each_moment_dtype(cases()[2])[1];
  for (const int64_t piece : {0, 100}) {
    Rank rank(test, 2, 0, /*whole=*/false, piece);
    rank.run(test);
    for (const ParamSlice& slice : slices(rank.groups[0])) {
      const Range range = rank.groups[0].state_range(slice.index);
      for (size_t slot = 0; slot < 2; ++slot) {
        const at::Tensor own = rank.states[0].moments[slot].slice(0, range.begin, range.end);
        EXPECT_EQ(slice.moments[slot].scalar_type(), at::kFloat);
        EXPECT_TRUE(slice.moments[slot].equal(own.to(at::kFloat)));
        slice.moments[slot].add_(1);
        EXPECT_FALSE(slice.moments[slot].equal(own.to(at::kFloat)));
      }
    }
  }
}

TEST(ShardedOptimizer, SlicesOfCodesAreTheirValues) {
  const Case test = with_each_moment_dtype(cases()[2])[2];
  for (const int64_t piece : {0, 512}) {
    Rank rank(test, 2, 0, /*whole=*/false, piece);
    rank.run(test);
    for (const ParamSlice& slice : slices(rank.groups[0])) {
      const Range range = rank.groups[0].state_range(slice.index);
      const StateTensors own = rank.states[0].slice(range);
      for (int slot = 0; slot < 2; ++slot) {
        std::vector<float> values(static_cast<size_t>(range.size()));
        kernels::decode({own.moments[size_t(slot)].data_ptr(), own.scales[size_t(slot)].data_ptr<float>(), slot == 0},
                        0, range.size(), values.data());
        const at::Tensor& got = slice.moments[size_t(slot)];
        EXPECT_EQ(got.scalar_type(), at::kFloat);
        EXPECT_TRUE(std::equal(values.begin(), values.end(), got.const_data_ptr<float>()));
      }
    }
  }
}

// Of equal values in two parameters, others are rounded up; and in the next step others than in this one.
TEST(ShardedOptimizer, DrawsDependOnParameterAndStep) {
  Case test = with_each_moment_dtype(cases()[2])[1];
  for (ParamGroupOptions& group : test.groups) group.beta2 = 0;  // the second moment is the square of the gradient
  Rank rank(test, 1, 0, /*whole=*/true);
  rank.grads[1].fill_(0.3);
  std::vector<at::Tensor> seen;
  const std::vector<bool> all(kNumels[1].size(), true);
  for (int step = 0; step < 2; ++step) {
    Array values(rank.grads[1]);
    rank.optimizer.update(rank.groups[1], {values}, test.groups, all, 1);
    for (const size_t param : {0, 2}) {
      const Range range = rank.groups[1].state_range(param);
      seen.push_back(rank.states[1].moments[1].slice(0, range.begin, range.begin + 64).clone());
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_GT(seen[i].max().item<double>(), seen[i].min().item<double>());
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(seen[i].equal(seen[j])) << i << " and " << j;
  }
}

TEST(ShardedOptimizer, TooFewParamGroupsAreRefused) {
  Case test = cases()[0];
  Rank rank(test, 1, 0, /*whole=*/true);
  test.groups.resize(1);
  ShardedGroup* const group = &rank.groups[0];
  EXPECT_THROW(rank.optimizer.check({&group, 1}, test.groups), ValueError);
}

}  // namespace
}  // namespace zeroshard

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "engine/late_saves.h"
#include "file/support.h"
#include "zeroshard/error.h"

// Checkpoints of moments in bf16 and in 8 bits, which have them in fp32, and who reads and sets them.
namespace zeroshard {
namespace {

using test::make_scenario;
using test::run_saving;
using test::SavingRank;
using test::Scenario;
using ::testing::Each;
using testing::TemporaryDirectory;

Scenario scenario_of(int world_size, int stage, DType moments) {
  Scenario scenario = make_scenario(world_size, stage);
  scenario.config.compute_dtype = DType::kBFloat16;
  scenario.config.moment_dtype = moments;
  scenario.model.ballast = 20'000;
  scenario.model.uneven_ballast = true;
  return scenario;
}

Scenario in_files(Scenario scenario, const TemporaryDirectory& directory, double ratio = 1) {
  scenario.config.offload_optimizer = {.device = OffloadOptimizerConfig::Device::kNvme,
                                       .ratio = ratio,
                                       .nvme_path = {directory.path()},
                                       .buffer_count = 2};
  return scenario;
}

// Both moments of all elements that the rank updates.
std::vector<at::Tensor> moments_of(SavingRank& rank) {
  std::vector<at::Tensor> result;
  for (size_t unit = 0; unit < test::kUnits; ++unit)
    for (size_t param = 0; param < 5; ++param) {
      if (unit == test::kUnits - 1 && param == 4) continue;  // the head has no ballast
      const auto slice = rank.engine->slice(unit, param);
      for (const at::Tensor& moment : slice->moments) {
        EXPECT_EQ(moment.scalar_type(), at::kFloat);
        result.push_back(moment.clone());
      }
    }
  return result;
}

at::Tensor rounded(const at::Tensor& values) {
  return values.to(at::kBFloat16).to(at::kFloat);
}

struct Saved {
  std::vector<at::Tensor> moments;  // of rank 0, at the checkpoint
  at::Tensor end;                   // values two steps later
};

Saved train_and_save(Scenario scenario, const std::string& root, bool async) {
  Saved saved;
  scenario.config.checkpoint.async = async;
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    for (const int step : {0, 1}) rank.train_step(scenario, step);
    rank.engine->save_checkpoint(root, "a", 2);
    const std::vector<at::Tensor> moments = moments_of(rank);
    for (const int step : {2, 3}) rank.train_step(scenario, step);
    const at::Tensor end = rank.values();
    rank.engine->wait_for_checkpoint();
    for (const MemoryLine& line : rank.engine->memory()) {
      if (line.category == "moments" || (line.category == "checkpoint staging" && async)) {
        EXPECT_EQ(line.measured_peak, line.planned) << line.category << " on " << line.tier;
      }
    }
    if (rank.rank == 0) saved = {moments, end};
  });
  EXPECT_THAT(errors, Each(""));
  return saved;
}

// As they are where they were loaded with `rounding` to nearest: of codes, at most half of the largest step away.
void expect_moments(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected, DType rounding) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (rounding == kCodes && expected[i].numel() > 0) {
      EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), 0.0072 * expected[i].abs().max().item<double>());
    } else {
      EXPECT_TRUE(got[i].equal(rounding == DType::kBFloat16 ? rounded(expected[i]) : expected[i])) << "moment " << i;
    }
  }
}

class NarrowMomentSaves : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  DType moments() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, NarrowMomentSaves,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(DType::kBFloat16, kCodes)),
                         [](const auto& test) {
                           const bool is_coded = std::get<1>(test.param) == kCodes;
                           return concat(std::get<0>(test.param), is_coded ? "Codes" : "Bf16");
                         });

// From memory to files and back, in the foreground and the background: a run that goes on has the bits of one that was
// not interrupted.
TEST_P(NarrowMomentSaves, GoOnWithTheSameBits) {
  const TemporaryDirectory swap;
  for (const int stage : {1, 2, 3}) {
    const Scenario memory = scenario_of(ranks(), stage, moments()), files = in_files(memory, swap);
    const Scenario share = in_files(memory, swap, 0.4);
    for (const bool async : {false, true}) {
      for (const Scenario& saving : {memory, files, share}) {
        const TemporaryDirectory root;
        const Saved saved = train_and_save(saving, root.path(), async);
        ASSERT_FALSE(HasFailure());
        for (const Scenario& loading : {memory, files, share}) {
          const auto errors = run_saving(
              loading,
              [&](SavingRank& rank) {
                rank.engine->load_checkpoint(root.path());
                if (rank.rank == 0) expect_moments(moments_of(rank), saved.moments, DType::kFloat32);
                for (const int step : {2, 3}) rank.train_step(loading, step);
                EXPECT_TRUE(rank.values().equal(saved.end)) << "stage " << stage;
              },
              /*first_seed=*/7);
          EXPECT_THAT(errors, Each(""));
        }
      }
    }
  }
}

// A checkpoint has fp32, whatever it was saved from: as narrow moments it is rounded to nearest.
TEST_P(NarrowMomentSaves, LoadFromAndIntoRunsWithMomentsInFp32) {
  const TemporaryDirectory swap;
  for (const bool is_narrow : {false, true}) {
    const Scenario saving = scenario_of(ranks(), 2, is_narrow ? moments() : DType::kFloat32);
    const Scenario loading = scenario_of(ranks(), 2, is_narrow ? DType::kFloat32 : moments());
    const TemporaryDirectory root;
    const Saved saved = train_and_save(saving, root.path(), /*async=*/true);
    ASSERT_FALSE(HasFailure());
    for (const Scenario& each : {loading, in_files(loading, swap)}) {
      const auto errors = run_saving(each, [&](SavingRank& rank) {
        rank.engine->load_checkpoint(root.path());
        // Of several ranks the first has other elements: with codes, large parameters have a flat group of their own.
        if (rank.rank == 0 && (moments() != kCodes || ranks() == 1))
          expect_moments(moments_of(rank), saved.moments, is_narrow ? DType::kFloat32 : moments());
        rank.train_step(each, 2);
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

// Background saves have the bytes of those in the foreground, however far training goes meanwhile.
TEST_P(NarrowMomentSaves, InTheBackgroundHaveTheStateOfTheirStep) {
  for (const int stage : {1, 3}) {
    const TemporaryDirectory swap;
    const Scenario scenario = scenario_of(ranks(), stage, moments());
    test::expect_the_state_of_their_step(scenario, uint64_t(stage) + 1);
    test::expect_the_state_of_their_step(in_files(scenario, swap), uint64_t(stage) + 1);
    test::expect_the_state_of_their_step(in_files(scenario, swap, 0.4), uint64_t(stage) + 1);
  }
}

// Codes are those of a parameter's own blocks: what was saved comes back from any number of ranks and stage.
TEST(CodedMomentSaves, KeepTheirValuesAtOtherRanksAndStages) {
  const auto whole_moments = [](const std::string& root) {
    std::vector<at::Tensor> moments;
    const auto errors = run_saving(scenario_of(1, 0, DType::kFloat32), [&](SavingRank& rank) {
      rank.engine->load_checkpoint(root);
      moments = moments_of(rank);
    });
    EXPECT_THAT(errors, Each(""));
    return moments;
  };
  const TemporaryDirectory first;
  train_and_save(scenario_of(3, 2, kCodes), first.path(), /*async=*/false);
  const std::vector<at::Tensor> expected = whole_moments(first.path());
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {4, 3}, {3, 3}, {2, 0}}) {
    const TemporaryDirectory second;
    const auto errors = run_saving(
        scenario_of(ranks, stage, kCodes),
        [&](SavingRank& rank) {
          rank.engine->load_checkpoint(first.path());
          rank.engine->save_checkpoint(second.path(), "b", 3);
          rank.engine->wait_for_checkpoint();
        },
        /*first_seed=*/7);
    EXPECT_THAT(errors, Each(""));
    expect_moments(whole_moments(second.path()), expected, DType::kFloat32);
  }
}

TEST_P(NarrowMomentSaves, WhatIsSetIsRoundedToNearest) {
  const TemporaryDirectory swap;
  const Scenario memory = scenario_of(ranks(), 2, moments());
  for (const Scenario& scenario : {memory, in_files(memory, swap)}) {
    const auto errors = run_saving(scenario, [&](SavingRank& rank) {
      rank.train_step(scenario, 0);
      const int64_t numel = rank.engine->slice(1, 4)->moments.at(1).numel();
      const at::Tensor values = at::full({numel}, 1.003F);
      rank.engine->set_moment("units.1.4", 1, values);
      const at::Tensor set = rank.engine->slice(1, 4)->moments.at(1);
      EXPECT_TRUE(set.equal(moments() == kCodes ? values : rounded(values)));  // the largest value is one of the map
      rank.train_step(scenario, 1);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

}  // namespace
}  // namespace zeroshard

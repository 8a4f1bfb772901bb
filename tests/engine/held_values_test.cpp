#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/support.h"

namespace zeroshard {
namespace {

using test::SavingRank;
using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void fill(SavingRank& rank, size_t unit, double value) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& param : rank.model->params()[unit]) at::Tensor(param).fill_(value);
}

TEST(HeldValues, AChangeThatIsDroppedLeavesTheValuesFromBefore) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t persistence : {0, 1 << 20}) {
      SCOPED_TRACE(::testing::Message() << "stage " << stage << ", persistence " << persistence);
      Scenario scenario = test::make_scenario(2, stage);
      scenario.config.persistence_threshold = persistence;
      const auto errors = test::run_saving(scenario, [&](SavingRank& rank) {
        rank.train_step(scenario, 0);
        const at::Tensor before = rank.values();
        rank.engine->gather({0, 1}, /*to_modify=*/true);
        fill(rank, 0, 7);
        rank.engine->release({0, 1}, Engine::kDropWrites);
        EXPECT_TRUE(rank.values().equal(before));
        rank.train_step(scenario, 1);
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

TEST(HeldValues, WhatWasTakenInsideStays) {
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(::testing::Message() << "stage " << stage);
    const Scenario scenario = test::make_scenario(2, stage);
    const auto errors = test::run_saving(scenario, [&](SavingRank& rank) {
      rank.engine->gather({0}, /*to_modify=*/true);
      rank.engine->gather({0}, /*to_modify=*/true);
      fill(rank, 0, rank.rank == 0 ? 0.5 : 9);
      rank.engine->release({0}, /*modify_rank=*/0);
      const at::Tensor taken = rank.values();
      fill(rank, 0, 7);
      rank.engine->release({0}, Engine::kDropWrites);
      EXPECT_TRUE(rank.values().equal(taken));
      EXPECT_EQ(taken[0].item<float>(), 0.5F);
    });
    EXPECT_THAT(errors, Each(""));
  }
}

// Whatever else holds the unit, and in whatever order the holds end.
TEST(HeldValues, EachReleaseForReadingFindsAWrite) {
  for (const int stage : {0, 3}) {
    for (const std::optional<bool> can_drop : {std::optional<bool>(), std::optional<bool>(true)}) {
      SCOPED_TRACE(::testing::Message() << "stage " << stage << ", the inner hold can drop: " << can_drop.has_value());
      const Scenario scenario = test::make_scenario(2, stage);
      const auto errors = test::run_saving(scenario, [&](SavingRank& rank) {
        rank.engine->gather({0});
        rank.engine->gather({0}, /*to_modify=*/false, can_drop);
        at::Tensor param = rank.model->params()[0][0];
        param.data().mul_(2);  // without a version
        for (int holds = 2; holds > 0; --holds)
          EXPECT_THAT([&] { rank.engine->release({0}); }, ThrowsMessage<StateError>(HasSubstr("was written inside")));
        EXPECT_THAT([&] { rank.engine->release({0}); }, ThrowsMessage<StateError>(HasSubstr("released more often")));
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

}  // namespace
}  // namespace zeroshard

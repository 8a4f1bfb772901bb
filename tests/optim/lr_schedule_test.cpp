#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// Expected values are worked out by hand; a few roundings of doubles may separate them.
constexpr double kRounding = 1e-15;

double lr_at(const SchedulerConfig& config, int64_t iteration, double initial_lr = 0.1) {
  const std::vector<double> lrs = LRSchedule(config, {initial_lr}).lrs(iteration);
  EXPECT_EQ(lrs.size(), 1u);
  return lrs.front();
}

TEST(WarmupLR, LinearRisesToTheGroupsRate) {
  const WarmupLRConfig config{.warmup_min_lr = 0.02, .warmup_num_steps = 4, .log_warmup = false};
  EXPECT_EQ(lr_at(config, -1), 0.02);
  EXPECT_EQ(lr_at(config, 0), 0.02);
  EXPECT_NEAR(lr_at(config, 1), 0.04, kRounding);
  EXPECT_NEAR(lr_at(config, 3), 0.08, kRounding);
  EXPECT_NEAR(lr_at(config, 4), 0.1, kRounding);
  EXPECT_NEAR(lr_at(config, 1000), 0.1, kRounding);
}

TEST(WarmupLR, LogRisesFromItsFirstStep) {
  const WarmupLRConfig config{.warmup_max_lr = 3, .warmup_num_steps = 8};
  EXPECT_EQ(lr_at(config, 0), 0);
  EXPECT_NEAR(lr_at(config, 1), 1, kRounding);  // ln 2 / ln 8 = 1/3
  EXPECT_NEAR(lr_at(config, 3), 2, kRounding);  // ln 4 / ln 8 = 2/3
  EXPECT_NEAR(lr_at(config, 7), 3, kRounding);
  EXPECT_EQ(lr_at(config, 8), 3);
}

TEST(WarmupLR, EachGroupRisesToItsOwnRate) {
  const LRSchedule schedule(WarmupLRConfig{.warmup_num_steps = 2, .log_warmup = false}, {0.4, 0.8});
  EXPECT_EQ(schedule.lrs(1), (std::vector<double>{0.2, 0.4}));
  EXPECT_EQ(schedule.lrs(2), (std::vector<double>{0.4, 0.8}));
}

TEST(WarmupLR, AWarmupOfOneStepTakesTwo) {
  const WarmupLRConfig config{.warmup_max_lr = 1, .warmup_num_steps = 1};
  EXPECT_EQ(lr_at(config, 0), 0);
  EXPECT_EQ(lr_at(config, 1), 1);  // ln 2 / ln 2
}

TEST(WarmupDecayLR, FallsToZeroAtTheTotal) {
  const WarmupDecayLRConfig config{
      .total_num_steps = 12, .warmup_max_lr = 0.8, .warmup_num_steps = 4, .log_warmup = false};
  EXPECT_EQ(lr_at(config, -1), 0);
  EXPECT_NEAR(lr_at(config, 2), 0.4, kRounding);
  EXPECT_NEAR(lr_at(config, 4), 0.8, kRounding);   // 8/8
  EXPECT_NEAR(lr_at(config, 10), 0.2, kRounding);  // 2/8
  EXPECT_EQ(lr_at(config, 12), 0);
  EXPECT_EQ(lr_at(config, 100), 0);
}

TEST(WarmupDecayLR, ATotalBelowTheWarmupFallsAtOnce) {
  const WarmupDecayLRConfig config{
      .total_num_steps = 3, .warmup_max_lr = 1, .warmup_num_steps = 4, .log_warmup = false};
  EXPECT_EQ(lr_at(config, 3), 0.75);
  EXPECT_EQ(lr_at(config, 4), 0);
}

TEST(WarmupCosineLR, ScalesEachGroupsOwnRate) {
  const LRSchedule schedule(WarmupCosineLRConfig{.total_num_steps = 6,
                                                 .warmup_min_ratio = 0.5,
                                                 .warmup_num_steps = 2,
                                                 .cos_min_ratio = 0,
                                                 .log_warmup = false},
                            {1, 10});
  EXPECT_EQ(schedule.lrs(-1), (std::vector<double>{0, 0}));
  EXPECT_EQ(schedule.lrs(0), (std::vector<double>{0.5, 5}));
  EXPECT_EQ(schedule.lrs(1), (std::vector<double>{0.75, 7.5}));
  EXPECT_NEAR(schedule.lrs(2)[0], (1 + std::sqrt(0.5)) / 2, kRounding);  // cos(pi/4)
  EXPECT_NEAR(schedule.lrs(3)[1], 5, 1e-14);                             // cos(pi/2)
  EXPECT_NEAR(schedule.lrs(5)[0], 0, kRounding);
}

TEST(WarmupCosineLR, StaysAtItsEnd) {
  const WarmupCosineLRConfig config{.total_num_steps = 10, .warmup_num_steps = 2, .cos_min_ratio = 0.25};
  for (const int64_t iteration : {9, 10, 17, 1000}) EXPECT_NEAR(lr_at(config, iteration, 2), 0.5, kRounding);
}

OneCycleConfig cycle() {
  OneCycleConfig config;
  config.cycle_min_lr = 1;
  config.cycle_max_lr = 5;
  config.cycle_first_step_size = 4;
  config.cycle_second_step_size = 8;
  return config;
}

TEST(OneCycle, RisesAndFalls) {
  EXPECT_EQ(lr_at(cycle(), -1), 1);
  EXPECT_EQ(lr_at(cycle(), 0), 2);    // step 1 of 4
  EXPECT_EQ(lr_at(cycle(), 3), 5);    // the top
  EXPECT_EQ(lr_at(cycle(), 4), 4.5);  // step 1 of 8 downwards
  EXPECT_EQ(lr_at(cycle(), 10), 1.5);
  EXPECT_EQ(lr_at(cycle(), 11), 1);
  EXPECT_EQ(lr_at(cycle(), 500), 1);  // no decay
}

TEST(OneCycle, DecaysAfterTheCycle) {
  OneCycleConfig config = cycle();
  config.decay_lr_rate = 0.5;
  config.decay_step_size = 2;
  EXPECT_EQ(lr_at(config, 11), 1);
  EXPECT_EQ(lr_at(config, 12), 1 / 1.25);  // half an interval
  EXPECT_EQ(lr_at(config, 15), 0.5);       // two intervals
}

TEST(OneCycle, ClimbsInStairs) {
  OneCycleConfig config = cycle();
  config.cycle_first_stair_count = 2;
  EXPECT_EQ(lr_at(config, 0), 1);
  EXPECT_EQ(lr_at(config, 1), 3);
  EXPECT_EQ(lr_at(config, 2), 3);
  EXPECT_EQ(lr_at(config, 3), 5);
  EXPECT_EQ(lr_at(config, 4), 3);  // 7/8 of two stairs is one
  config.cycle_second_stair_count = 0;
  EXPECT_EQ(lr_at(config, 4), 4.5);
}

TEST(OneCycle, MovesBeta1AgainstTheRate) {
  OneCycleConfig config = cycle();
  config.cycle_min_mom = 0.5;
  config.cycle_max_mom = 0.75;
  config.decay_mom_rate = 1;
  config.decay_step_size = 1;
  const LRSchedule schedule(config, {0.1});
  EXPECT_EQ(schedule.betas(-1)->beta1, 0.5);
  EXPECT_EQ(schedule.betas(1)->beta1, 0.625);
  EXPECT_EQ(schedule.betas(3)->beta1, 0.5);
  EXPECT_EQ(schedule.betas(11)->beta1, 0.75);
  EXPECT_EQ(schedule.betas(12)->beta1, 1.5);
  EXPECT_EQ(schedule.betas(3)->beta2, 0.99);
  config.cycle_momentum = false;
  EXPECT_FALSE(LRSchedule(config, {0.1}).betas(3));
  EXPECT_FALSE(LRSchedule(WarmupLRConfig{}, {0.1}).betas(3));
}

TEST(OneCycle, MayHaveValuesForEachParamGroup) {
  OneCycleConfig config = cycle();
  config.cycle_max_lr = PerGroup(std::vector{5.0, 9.0});
  config.cycle_min_mom = PerGroup(std::vector{0.5, 0.25});
  config.cycle_max_mom = 0.75;
  config.cycle_second_step_size = 0;
  const LRSchedule schedule(config, {0.1, 0.1});
  EXPECT_EQ(schedule.lrs(1), (std::vector{3.0, 5.0}));
  EXPECT_EQ(schedule.lrs(2), (std::vector{4.0, 7.0}));
  EXPECT_EQ(schedule.lrs(3), (std::vector{1.0, 1.0}));  // the cycle ends where its top would be
  EXPECT_EQ(schedule.betas(1, 0)->beta1, 0.625);
  EXPECT_EQ(schedule.betas(1, 1)->beta1, 0.5);
  EXPECT_THROW(schedule.betas(1, 2), ValueError);
  EXPECT_THROW(LRSchedule(config, {0.1}), ValueError);
  EXPECT_THROW(LRSchedule(config, {0.1, 0.1, 0.1}), ValueError);
}

TEST(LRRangeTest, RisesSmoothlyOrInSteps) {
  LRRangeTestConfig config{.min_lr = 0.5, .step_size = 4, .step_rate = 2};
  EXPECT_EQ(lr_at(config, -1), 0.5);
  EXPECT_EQ(lr_at(config, 0), 0.75);
  EXPECT_EQ(lr_at(config, 3), 1.5);
  config.staircase = true;
  EXPECT_EQ(lr_at(config, 2), 0.5);
  EXPECT_EQ(lr_at(config, 3), 1.5);
  EXPECT_EQ(lr_at(config, 6), 1.5);
}

TEST(LRSchedule, RefusesNoGroupsAndIterationsBeforeTheStart) {
  EXPECT_THROW(LRSchedule(WarmupLRConfig{}, {}), ValueError);
  EXPECT_THROW(LRSchedule(WarmupLRConfig{}, {0.1}).lrs(-2), ValueError);
  EXPECT_THROW(LRSchedule(WarmupLRConfig{}, {0.1}).betas(-2), ValueError);
}

}  // namespace
}  // namespace zeroshard

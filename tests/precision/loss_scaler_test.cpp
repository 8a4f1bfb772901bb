#include "precision/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

Fp16Config dynamic_config(int64_t window = 4, int hysteresis = 1) {
  Fp16Config config;
  config.enabled = true;
  config.initial_scale_power = 8;
  config.loss_scale_window = window;
  config.hysteresis = hysteresis;
  return config;
}

void repeat(LossScaler& scaler, int times, bool found_inf) {
  for (int i = 0; i < times; ++i) scaler.update(found_inf);
}

TEST(LossScaler, IsOneWithoutFp16) {
  LossScaler scaler(Fp16Config{});
  repeat(scaler, 2000, false);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.dynamic());
}

TEST(LossScaler, DefaultsStartAtTwoToThe16) {
  Fp16Config config;
  config.enabled = true;
  LossScaler scaler(config);
  EXPECT_EQ(scaler.scale(), 65536);
  repeat(scaler, 1000, false);
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.update(false);  // the 1001st
  EXPECT_EQ(scaler.scale(), 131072);
}

TEST(LossScaler, StaticScaleNeverMoves) {
  Fp16Config config = dynamic_config();
  config.loss_scale = 128;
  LossScaler scaler(config);
  repeat(scaler, 50, true);
  repeat(scaler, 50, false);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_FALSE(scaler.dynamic());
}

TEST(LossScaler, DoublesAfterEveryWindowOfGoodSteps) {
  LossScaler scaler(dynamic_config(/*window=*/4));
  repeat(scaler, 4, false);
  EXPECT_EQ(scaler.scale(), 256);
  scaler.update(false);  // the first good step does not count
  EXPECT_EQ(scaler.scale(), 512);
  repeat(scaler, 3, false);
  EXPECT_EQ(scaler.scale(), 512);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 1024);
}

TEST(LossScaler, OverflowHalvesAndRestartsTheWindow) {
  LossScaler scaler(dynamic_config(/*window=*/4));
  repeat(scaler, 3, false);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 128);
  repeat(scaler, 4, false);
  EXPECT_EQ(scaler.scale(), 128);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 256);
}

TEST(LossScaler, HysteresisDelaysTheFirstHalvingOnly) {
  LossScaler scaler(dynamic_config(/*window=*/4, /*hysteresis=*/3));
  repeat(scaler, 2, true);
  EXPECT_EQ(scaler.scale(), 256);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 128);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 64);
  repeat(scaler, 5, false);  // a full window refills it
  EXPECT_EQ(scaler.scale(), 128);
  repeat(scaler, 2, true);
  EXPECT_EQ(scaler.scale(), 128);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 64);
}

TEST(LossScaler, ConsecutiveHysteresisIsRefilledByOneGoodStep) {
  Fp16Config config = dynamic_config(/*window=*/100, /*hysteresis=*/2);
  LossScaler plain(config);
  config.consecutive_hysteresis = true;
  LossScaler consecutive(config);
  for (LossScaler* scaler : {&plain, &consecutive}) {
    scaler->update(true);
    scaler->update(false);
    scaler->update(true);
  }
  EXPECT_EQ(plain.scale(), 128);
  EXPECT_EQ(consecutive.scale(), 256);
}

TEST(LossScaler, StaysAtTheMinimum) {
  Fp16Config config = dynamic_config();
  config.min_loss_scale = 100;
  LossScaler scaler(config);
  repeat(scaler, 10, true);
  EXPECT_EQ(scaler.scale(), 100);
}

TEST(LossScaler, StaysFinite) {
  Fp16Config config = dynamic_config(/*window=*/1);
  config.initial_scale_power = 126;
  LossScaler scaler(config);
  repeat(scaler, 100, false);
  EXPECT_EQ(scaler.scale(), std::ldexp(1.0, 127));
}

TEST(LossScaler, LoadedStateContinuesAsTheSavedOne) {
  for (const uint64_t seed : seeds(50)) {
    SeededRandom random(seed);
    LossScaler original(dynamic_config(/*window=*/3, /*hysteresis=*/2));
    const auto step = [&] { return random() % 5 == 0; };
    for (uint64_t i = 0; i < seed % 50; ++i) original.update(step());
    LossScaler copy(dynamic_config(/*window=*/3, /*hysteresis=*/2));
    copy.load(original.state());
    for (int i = 0; i < 40; ++i) {
      const bool found_inf = step();
      original.update(found_inf);
      copy.update(found_inf);
      ASSERT_EQ(original.state(), copy.state());
    }
  }
}

TEST(LossScaler, RefusesImpossibleStatesAndKeepsItsOwn) {
  LossScaler scaler(dynamic_config());
  const LossScalerState before = scaler.state();
  const double inf = std::numeric_limits<double>::infinity();
  for (const double scale : {0.0, -1.0, inf, std::nan("")}) {
    EXPECT_THROW(scaler.load({.scale = scale}), ValueError);
  }
  EXPECT_THROW(scaler.load({.iteration = -1}), ValueError);
  EXPECT_THROW(scaler.load({.iteration = 3, .last_overflow = 4}), ValueError);
  EXPECT_THROW(scaler.load({.hysteresis_left = 0}), ValueError);
  EXPECT_EQ(scaler.state(), before);
}

TEST(LossScaler, AStaticScaleSurvivesLoad) {
  Fp16Config config = dynamic_config();
  config.loss_scale = 128;
  LossScaler scaler(config);
  scaler.load({.scale = 4096});
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, RefusesScalesThatAreNotUsable) {
  Fp16Config config = dynamic_config();
  config.loss_scale = std::numeric_limits<double>::infinity();
  EXPECT_THROW(LossScaler{config}, ValueError);
  config = dynamic_config();
  config.min_loss_scale = 0;
  EXPECT_THROW(LossScaler{config}, ValueError);
}

}  // namespace
}  // namespace zeroshard

#include "schedule/execution_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

using UnitOrder = std::vector<size_t>;

// Runs one pass; how many of its units were predicted.
size_t run(ExecutionOrder& order, const UnitOrder& units) {
  size_t predicted = 0;
  order.begin_pass();
  for (const size_t unit : units) predicted += order.advance(unit) ? 1 : 0;
  order.end_pass();
  return predicted;
}

UnitOrder upcoming(const ExecutionOrder& order) {
  const auto units = order.upcoming();
  return {units.begin(), units.end()};
}

UnitOrder needed(const ExecutionOrder& order) {
  const auto units = order.needed();
  return {units.begin(), units.end()};
}

TEST(ExecutionOrder, TheFirstPassIsRecordedAndPredictsNothing) {
  ExecutionOrder order;
  order.begin_pass();
  EXPECT_TRUE(order.is_recording());
  for (const size_t unit : {0, 1, 2, 2, 1, 0}) {
    EXPECT_FALSE(order.advance(unit));
    EXPECT_TRUE(order.upcoming().empty());
  }
}

TEST(ExecutionOrder, LaterPassesArePredictedNearestFirst) {
  ExecutionOrder order;
  run(order, {0, 1, 1, 0});
  order.begin_pass();
  EXPECT_FALSE(order.is_recording());
  EXPECT_EQ(upcoming(order), (UnitOrder{0, 1, 1, 0}));
  EXPECT_TRUE(order.advance(0));
  EXPECT_EQ(upcoming(order), (UnitOrder{1, 1, 0}));
  EXPECT_TRUE(order.advance(1));
  EXPECT_TRUE(order.advance(1));
  EXPECT_EQ(upcoming(order), (UnitOrder{0}));
  EXPECT_TRUE(order.advance(0));
  EXPECT_TRUE(order.upcoming().empty());
}

TEST(ExecutionOrder, KnowsWhatIsNextAndWhatComesBeforeAUnit) {
  ExecutionOrder order;
  const auto before = [&order](size_t unit) {
    const auto units = order.upcoming_before(unit);
    return UnitOrder(units.begin(), units.end());
  };
  run(order, {0, 1, 1, 0});
  EXPECT_FALSE(order.is_next(0));  // between passes
  order.begin_pass();
  EXPECT_TRUE(order.is_next(0));
  EXPECT_FALSE(order.is_next(1));
  EXPECT_EQ(before(0), UnitOrder());
  order.advance(0);
  EXPECT_TRUE(order.is_next(1));
  EXPECT_EQ(before(0), (UnitOrder{1, 1}));
  EXPECT_EQ(before(1), UnitOrder());
  EXPECT_EQ(before(2), UnitOrder());  // it does not come
  order.advance(2);                   // a deviation
  EXPECT_FALSE(order.is_next(1));
  EXPECT_EQ(before(0), UnitOrder());
}

TEST(ExecutionOrder, ADeviationEndsPredictionForTheRestOfThePass) {
  ExecutionOrder order;
  run(order, {0, 1, 2});
  order.begin_pass();
  EXPECT_TRUE(order.advance(0));
  EXPECT_FALSE(order.advance(2));
  EXPECT_TRUE(order.upcoming().empty());
  EXPECT_FALSE(order.advance(2));  // the third of the recording again: no longer followed
}

TEST(ExecutionOrder, ADeviatingPassIsTheNextRecording) {
  ExecutionOrder order;
  run(order, {0, 1, 2});
  EXPECT_EQ(run(order, {0, 2, 1}), 1U);
  EXPECT_EQ(run(order, {0, 2, 1}), 3U);
}

TEST(ExecutionOrder, APassThatIsShorterOrLongerIsFollowedAsFarAsItGoes) {
  ExecutionOrder order;
  run(order, {0, 1, 2});
  EXPECT_EQ(run(order, {0, 1}), 2U);
  EXPECT_EQ(run(order, {0, 1, 2}), 2U);
  EXPECT_EQ(run(order, {0, 1, 2}), 3U);
}

TEST(ExecutionOrder, OutsideOfAPassNothingIsRecorded) {
  ExecutionOrder order;
  run(order, {0, 1});
  EXPECT_FALSE(order.advance(0));
  EXPECT_TRUE(order.upcoming().empty());
  order.end_pass();  // twice: does nothing
  EXPECT_EQ(run(order, {0, 1}), 2U);
}

TEST(ExecutionOrder, AForgottenPassLeavesTheOneBeforeIt) {
  ExecutionOrder order;
  order.forget();  // there is none
  run(order, {0, 1, 2});
  run(order, {0, 2});
  order.forget();
  EXPECT_EQ(UnitOrder(order.needed().begin(), order.needed().end()), (UnitOrder{0, 1, 2}));
  order.forget();  // twice: does nothing
  order.begin_pass();
  EXPECT_EQ(upcoming(order), (UnitOrder{0, 1, 2}));
  order.advance(0);
  order.forget();  // while it runs
  EXPECT_TRUE(order.upcoming().empty());
  order.end_pass();
  EXPECT_EQ(run(order, {0, 1, 2}), 3U);
}

TEST(ExecutionOrder, TheFirstPassForgottenLeavesNothing) {
  ExecutionOrder order;
  run(order, {0, 1, 2});
  order.forget();
  EXPECT_EQ(run(order, {0, 1, 2}), 0U);
  EXPECT_EQ(run(order, {0, 1, 2}), 3U);
}

TEST(ExecutionOrder, AForgottenPassLeavesWhereBackwardBegan) {
  ExecutionOrder order;
  const auto run_until = [&](const UnitOrder& forward, const UnitOrder& backward) {
    order.begin_pass();
    for (const size_t unit : forward) order.advance(unit);
    order.begin_backward();
    const UnitOrder rest = upcoming(order);
    for (const size_t unit : backward) order.advance(unit);
    order.end_pass();
    return rest;
  };
  run_until({0, 1}, {1, 0});
  run_until({0}, {0});
  order.forget();
  EXPECT_EQ(run_until({0, 1}, {1, 0}), (UnitOrder{1, 0}));
}

TEST(ExecutionOrder, APassWithoutEndIsRecordedInPart) {
  ExecutionOrder order;
  order.begin_pass();
  for (size_t i = 0; i < ExecutionOrder::kMaxLength + 10; ++i) EXPECT_FALSE(order.advance(i % 3));
  EXPECT_EQ(order.needed().size(), ExecutionOrder::kMaxLength);
  order.end_pass();
  EXPECT_EQ(run(order, {0, 1, 2}), 3U);
}

TEST(ExecutionOrder, WhatIsNotedIsNeededAndNeverPredicted) {
  ExecutionOrder order;
  for (const size_t noted : {size_t(7), size_t(8)}) {  // differs, and what is predicted does not
    order.begin_pass();
    const bool follows = noted == 8;
    EXPECT_EQ(order.advance(0), follows);
    order.note(noted);
    EXPECT_EQ(upcoming(order), follows ? UnitOrder{1} : UnitOrder{});
    EXPECT_EQ(order.advance(1), follows);
    EXPECT_EQ(needed(order), (UnitOrder{0, noted, 1}));
    order.end_pass();
    EXPECT_EQ(needed(order), (UnitOrder{0, noted, 1}));
  }
  order.forget();
  EXPECT_EQ(needed(order), (UnitOrder{0, 7, 1}));
}

TEST(ExecutionOrder, PredictsExactlyTheCommonPrefixWithThePassBefore) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    ExecutionOrder order;
    UnitOrder before;
    for (int pass = 0; pass < 6; ++pass) {
      UnitOrder units(random() % 8);
      for (size_t& unit : units) unit = random() % 2;
      size_t common = 0;
      while (common < std::min(units.size(), before.size()) && units[common] == before[common]) ++common;
      ASSERT_EQ(run(order, units), common);
      before = units;
    }
  }
}

}  // namespace
}  // namespace zeroshard

#include "engine/forwards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

#include "schedule/execution_order.h"

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Forwards that have ended one after another.
Forwards ended(std::initializer_list<size_t> units, bool has_backward = true) {
  Forwards forwards(3);
  for (const size_t unit : units) {
    forwards.begin(unit);
    forwards.end(unit, has_backward);
  }
  return forwards;
}

TEST(Forwards, EndWithTheirOuterOne) {
  Forwards forwards(3);
  for (const size_t unit : {0U, 1U, 2U}) forwards.begin(unit);
  EXPECT_THAT(forwards.running(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(forwards.end(1, /*has_backward=*/true));  // that of unit 2 has failed
  EXPECT_THAT(forwards.running(), ElementsAre(0));
  EXPECT_FALSE(forwards.is_running(2));
  forwards.abandon();
  EXPECT_THAT(forwards.running(), IsEmpty());
}

TEST(Forwards, MayContainAnotherOfTheSameUnit) {
  Forwards forwards(1);
  for (int twice = 0; twice < 2; ++twice) forwards.begin(0);
  EXPECT_FALSE(forwards.end(0, /*has_backward=*/true));
  EXPECT_TRUE(forwards.end(0, /*has_backward=*/true));
  EXPECT_TRUE(forwards.end(0, /*has_backward=*/true));  // one that nobody has begun
}

TEST(Forwards, KnowWhichEndedLast) {
  const Forwards forwards = ended({1, 0, 1});
  EXPECT_EQ(forwards.time_of_end(0), 2);
  EXPECT_EQ(forwards.time_of_end(1), 3);
  EXPECT_EQ(forwards.time_of_end(2), 0);
}

TEST(Forwards, GiveABackwardThoseThatEndedLater) {
  Forwards forwards = ended({0, 1, 2, 1, 1, 0});
  EXPECT_THAT(forwards.take(2), ElementsAre(0, 1));  // two of unit 1 in a row count as one
  EXPECT_THAT(forwards.take(2), IsEmpty());
  EXPECT_THAT(forwards.take(1), IsEmpty());
  EXPECT_THAT(forwards.take_all(), ElementsAre(0));
  EXPECT_THAT(forwards.take_all(), IsEmpty());
}

TEST(Forwards, OfAnEvaluationWaitForNoBackward) {
  EXPECT_THAT(ended({0, 1, 2}, /*has_backward=*/false).take_all(), IsEmpty());
}

TEST(Forwards, ThatNeverGetABackwardAreForgotten) {
  Forwards forwards(2);
  for (size_t i = 0; i <= ExecutionOrder::kMaxLength; ++i) forwards.end(i % 2, /*has_backward=*/true);
  EXPECT_THAT(forwards.take_all(), ElementsAre(0));
}

}  // namespace
}  // namespace zeroshard

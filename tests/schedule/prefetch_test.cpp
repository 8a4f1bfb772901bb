#include "schedule/prefetch.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>
#include <vector>

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Units, of which some are there, and for some there is no memory.
struct Units {
  std::set<size_t> there = {};
  std::set<size_t> too_large = {};

  // What is gathered while unit 0 is needed.
  std::vector<size_t> gathered(const std::vector<size_t>& upcoming, const std::vector<int>& depths) {
    std::vector<size_t> begun;
    const auto is_there = [&](size_t unit) { return there.contains(unit); };
    gather_ahead(upcoming, 0, depths, is_there, [&](size_t unit) {
      if (too_large.contains(unit)) return false;
      there.insert(unit);
      begun.push_back(unit);
      return true;
    });
    return begun;
  }
};

TEST(GatherAhead, BeginsTheNearestUpToTheDepth) {
  EXPECT_THAT(Units().gathered({1, 2, 3}, {2, 2, 2, 2}), ElementsAre(1, 2));
  EXPECT_THAT(Units().gathered({3, 2, 1}, {2, 2, 2, 2}), ElementsAre(3, 2));
  EXPECT_THAT(Units().gathered({1}, {2, 2}), ElementsAre(1));
  EXPECT_THAT(Units().gathered({}, {2}), IsEmpty());
}

TEST(GatherAhead, WhatIsThereDoesNotCount) {
  EXPECT_THAT(Units({.there = {1}}).gathered({1, 2, 3}, {1, 1, 1, 1}), ElementsAre(2));
  EXPECT_THAT(Units().gathered({0, 1, 1, 2}, {2, 2, 2}), ElementsAre(1, 2));  // needed now, and needed twice
}

// Large units have another depth than small ones: one whose own does not reach so far ends it for those behind it, so
// that the gathers begin in the order in which they are needed.
TEST(GatherAhead, EndsAtAUnitWhoseDepthIsReached) {
  EXPECT_THAT(Units().gathered({1, 2, 3}, {9, 9, 1, 9}), ElementsAre(1));
  EXPECT_THAT(Units().gathered({1, 2}, {9, 0, 9}), IsEmpty());
}

TEST(GatherAhead, EndsWhereThereIsNoMemory) {
  EXPECT_THAT(Units({.too_large = {2}}).gathered({1, 2, 3}, {3, 3, 3, 3}), ElementsAre(1));
}

TEST(GatherAhead, LooksAtSoManyPlacesAlone) {
  std::vector<size_t> upcoming(kLookAhead + 1);
  std::iota(upcoming.begin(), upcoming.end(), size_t{1});
  Units units;
  for (size_t unit = 1; unit < kLookAhead; ++unit) units.there.insert(unit);  // the last two are not there
  EXPECT_THAT(units.gathered(upcoming, std::vector<int>(kLookAhead + 2, 9)), ElementsAre(kLookAhead));
}

}  // namespace
}  // namespace zeroshard

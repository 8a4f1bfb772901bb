#include "monitor/series.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

std::vector<Series::Point> points_of(const Series& series) {
  std::vector<Series::Point> points;
  for (const Series::Group& group : series.groups())
    for (const Series::Point& point : group.points()) points.push_back(point);
  return points;
}

TEST(Series, KeepsEveryRecordUpToTheLimit) {
  Series series;
  std::vector<Series::Point> expected;
  for (int64_t step = 1; step <= int64_t(Series::kMaxPoints); ++step) {
    series.add(step, 1.0 / double(step));
    expected.push_back({step, 1.0 / double(step)});
  }
  EXPECT_EQ(points_of(series), expected);
}

TEST(Series, KeepsExtremesOfAnyNumberOfRecords) {
  SeededRandom random(2);
  for (const int64_t count : {2001, 2002, 3999, 4001, 8000, 50000, 131072}) {
    SCOPED_TRACE(count);
    Series series;
    const int64_t peak = int64_t(random() % uint64_t(count)), hole = int64_t(random() % uint64_t(count));
    for (int64_t step = 0; step < count; ++step)
      series.add(step, step == peak ? 100 : step == hole ? -100 : double(random() % 1000) / 1000);
    const std::vector<Series::Point> points = points_of(series);
    EXPECT_LE(points.size(), Series::kMaxPoints);
    EXPECT_GE(points.size(), Series::kMaxPoints / 4);
    const auto has = [&](Series::Point point) {
      return std::find(points.begin(), points.end(), point) != points.end();
    };
    EXPECT_TRUE(has({peak, 100}));
    EXPECT_TRUE(peak == hole || has({hole, -100}));
    for (size_t i = 1; i < points.size(); ++i) EXPECT_LT(points[i - 1].step, points[i].step);
  }
}

TEST(Series, RemembersWhereValuesWereNotFinite) {
  Series series;
  for (int64_t step = 0; step < 10000; ++step) series.add(step, step == 7777 ? std::nan("") : 1.0);
  int marks = 0;
  for (const Series::Group& group : series.groups()) {
    if (!group.not_finite_step) continue;
    EXPECT_EQ(*group.not_finite_step, 7777);
    ++marks;
  }
  EXPECT_EQ(marks, 1);
  for (const Series::Point& point : points_of(series)) EXPECT_EQ(point.value, 1.0);
}

}  // namespace
}  // namespace zeroshard

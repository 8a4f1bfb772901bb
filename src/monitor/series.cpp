#include "monitor/series.h"

#include <cmath>

namespace zeroshard {
namespace {

Series::Group group_of(int64_t step, double value) {
  Series::Group group;
  if (std::isfinite(value)) {
    group.lowest = group.highest = Series::Point{step, value};
  } else {
    group.not_finite_step = step;
  }
  return group;
}

void merge(Series::Group& group, const Series::Group& later) {
  if (later.lowest && (!group.lowest || later.lowest->value < group.lowest->value)) group.lowest = later.lowest;
  if (later.highest && (!group.highest || later.highest->value > group.highest->value)) group.highest = later.highest;
  if (!group.not_finite_step) group.not_finite_step = later.not_finite_step;
}

}  // namespace

std::vector<Series::Point> Series::Group::points() const {
  if (!lowest) return {};
  if (*lowest == *highest) return {*lowest};
  if (lowest->step <= highest->step) return {*lowest, *highest};
  return {*highest, *lowest};
}

void Series::add(int64_t step, double value) {
  const Group group = group_of(step, value);
  if (!groups_.empty() && records_in_last_ < records_per_group_) {
    merge(groups_.back(), group);
    ++records_in_last_;
    return;
  }
  // The groups are merged for the first time when there are 2000 groups of one point each. They are then merged twice,
  // because a merged group has up to two points, so that only 1000 of them fit. Later they are merged once whenever
  // there are 1000. All groups are full at a merge, so the merged groups have equally many records.
  while ((groups_.size() + 1) * (records_per_group_ == 1 ? 1 : 2) > kMaxPoints) {
    for (size_t i = 0; i < groups_.size() / 2; ++i) {
      groups_[i] = groups_[2 * i];
      merge(groups_[i], groups_[2 * i + 1]);
    }
    groups_.resize(groups_.size() / 2);
    records_per_group_ *= 2;
  }
  groups_.push_back(group);
  records_in_last_ = 1;
}

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace zeroshard {

// One metric over a run of any length, in bounded memory, for a plot.
//
// A series is a list of groups of consecutive records. A group keeps its lowest and its highest finite value, so it has
// at most two points, and a spike of one step is never lost. At first each record is a group of its own. When one more
// group could make more than kMaxPoints points, each pair of neighbouring groups becomes one group, and later groups
// get as many records as these.
class Series {
 public:
  static constexpr size_t kMaxPoints = 2000;

  struct Point {
    int64_t step = 0;
    double value = 0;
    bool operator==(const Point&) const = default;
  };
  struct Group {
    std::optional<Point> lowest, highest;    // the extremes of the finite values
    std::optional<int64_t> not_finite_step;  // the first step whose value was not finite
    std::vector<Point> points() const;       // none, one or two points, in the order of their steps
  };

  // Appends a value. Steps must not decrease.
  void add(int64_t step, double value);
  const std::vector<Group>& groups() const { return groups_; }
  bool empty() const { return groups_.empty(); }

 private:
  std::vector<Group> groups_;
  int64_t records_per_group_ = 1, records_in_last_ = 0;
};

}  // namespace zeroshard

#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

namespace zeroshard {

// The number of positions of the execution order that are searched for units to read or gather ahead. A model of many
// small units that stay whole has thousands of positions with nothing to gather. Without the limit, the code would
// search all of them at each unit.
inline constexpr size_t kLookAhead = 16;

// Starts gathers of units before they are used, while the pass needs `current`. Visits the first kLookAhead units of
// `upcoming`, nearest first. Skips `current` and units that are whole, for which `is_there(unit)` must return true.
// Stops at a unit if this call has already started `depths[unit]` gathers or more. `begin(unit)` must start the gather
// unless it already runs, and return false if there is no memory for it. If `begin(unit)` returns false, no later unit
// is gathered either. Gathers that already run count as started.
template <typename IsThere, typename Begin>
void gather_ahead(std::span<const size_t> upcoming, size_t current, std::span<const int> depths,
                  const IsThere& is_there, const Begin& begin) {
  int begun = 0;
  for (const size_t unit : upcoming.first(std::min(upcoming.size(), kLookAhead))) {
    if (begun >= depths[unit]) return;
    if (unit == current || is_there(unit)) continue;
    if (!begin(unit)) return;
    ++begun;
  }
}

}  // namespace zeroshard

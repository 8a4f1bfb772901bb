#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

namespace zeroshard {

// How far ahead in the order gather_ahead() looks. In a model of many small whole units, thousands of positions have
// none to gather, and without the limit all of them would be searched for each unit.
inline constexpr size_t kLookAhead = 16;

// Begins the gathers of units ahead of their use, while `current` is needed: of those in `upcoming`, nearest first, up
// to the `depths[unit]`-th gather. `is_there(unit)`: it is whole, or its gather has begun. `begin(unit)` returns false
// when there is no memory for it; then nothing that comes later is gathered either.
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

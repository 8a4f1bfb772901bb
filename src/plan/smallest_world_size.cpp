#include "plan/smallest_world_size.h"

#include <algorithm>

#include "zeroshard/plan.h"

namespace zeroshard {

std::optional<int> smallest_world_size(int above, const std::function<bool(int)>& fits) {
  int low = above, high = above;  // `low` is a size that does not fit
  do {
    if (high >= kMaxPlannedWorldSize) return std::nullopt;
    low = high;
    high = std::clamp(2 * high, 1, kMaxPlannedWorldSize);
  } while (!fits(high));
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace zeroshard

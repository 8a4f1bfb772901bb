#pragma once
#include <functional>
#include <optional>

namespace zeroshard {

// Returns the smallest world size larger than `above` for which fits(world_size) is true. `above` itself is taken not
// to fit. Returns nothing if no size up to kMaxPlannedWorldSize fits. The function doubles the size until it fits, and
// then bisects. This works because the bytes of a rank fall as the world size grows, apart from padding.
std::optional<int> smallest_world_size(int above, const std::function<bool(int)>& fits);

}  // namespace zeroshard

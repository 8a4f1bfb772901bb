#pragma once
#include <functional>
#include <optional>

namespace zeroshard {

// Returns the smallest world size above `above` for which fits(world_size) is true. `above` itself must not fit.
// Doubles the size until it fits, and then bisects. This works because the bytes of a rank fall with the world size,
// apart from padding. Returns nothing if no size up to kMaxPlannedWorldSize fits.
std::optional<int> smallest_world_size(int above, const std::function<bool(int)>& fits);

}  // namespace zeroshard

#pragma once
#include <functional>
#include <optional>

namespace zeroshard {

// Returns the smallest world size above `above` (which does not fit) for which fits(world_size) holds, by doubling and
// then bisection. This works because bytes per rank fall with the world size, apart from padding. Returns nothing if no
// size up to kMaxPlannedWorldSize fits.
std::optional<int> smallest_world_size(int above, const std::function<bool(int)>& fits);

}  // namespace zeroshard

#pragma once
#include <functional>
#include <optional>

namespace zeroshard {

// The smallest world size above `above`, which does not fit, for which fits(world_size) holds: found by doubling and
// then bisection. Apart from padding, bytes per rank fall with the world size. Nothing up to kMaxPlannedWorldSize:
// none.
std::optional<int> smallest_world_size(int above, const std::function<bool(int)>& fits);

}  // namespace zeroshard

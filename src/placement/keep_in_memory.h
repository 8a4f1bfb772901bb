#pragma once
#include <span>
#include <vector>

#include "placement/placement.h"

namespace zeroshard {

// Of the parameters that `table` has in files, in the order of the units, those of up to `numel` elements of a rank
// stay on `tier`.
void keep_in_memory(std::span<const UnitLayout> units, int64_t numel, Tier tier, std::vector<UnitPlacement>& table);

}  // namespace zeroshard

#pragma once
#include <span>
#include <vector>

#include "placement/placement.h"
#include "zeroshard/plan.h"

namespace zeroshard {

// The table of a run: place(), but parameters that stay in memory where others go to files lie on the host if the ranks
// have a device beside it.
std::vector<UnitPlacement> planned_placements(std::span<const UnitLayout> units, const PlanOptions& options);

}  // namespace zeroshard

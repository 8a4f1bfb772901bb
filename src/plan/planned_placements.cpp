#include "plan/planned_placements.h"

#include "placement/keep_in_memory.h"

namespace zeroshard {

std::vector<UnitPlacement> planned_placements(std::span<const UnitLayout> units, const PlanOptions& options) {
  PlacementOptions none_stay = options;
  none_stay.parameters_in_memory = 0;
  std::vector<UnitPlacement> table = place(units, none_stay);
  keep_in_memory(units, options.parameters_in_memory, options.on_device ? Tier::kHost : Tier::kDevice, table);
  return table;
}

}  // namespace zeroshard

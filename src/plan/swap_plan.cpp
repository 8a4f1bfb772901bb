#include "plan/swap_plan.h"

#include "base/format.h"

namespace zeroshard {

std::vector<ChunkGroup> groups_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements) {
  std::vector<ChunkGroup> groups;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const GroupPlacement& place = placements[u].groups[g];
      if (place.state_tier() != Tier::kFile) continue;
      const ShardLayout& layout = units[u].groups[g].layout;
      int slots = 0;
      for (const Held* held : {&place.master_weights, &place.moments})
        if (held->extent != Extent::kNothing) slots += held->values;
      groups.push_back(
          {place.states_on(Tier::kFile, layout), slots, concat("group ", g, " of unit '", units[u].name, "'")});
    }
  }
  return groups;
}

int64_t swap_memory_bytes(std::span<const ChunkGroup> groups, int buffer_count) {
  return ChunkTotals(groups).memory_bytes(buffer_count);
}

}  // namespace zeroshard

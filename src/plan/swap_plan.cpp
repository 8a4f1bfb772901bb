#include "plan/swap_plan.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/format.h"

namespace zeroshard {
namespace {

std::vector<ChunkGroup> values_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements,
                                       Stored GroupPlacement::*held, std::string_view what) {
  std::vector<ChunkGroup> groups;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const Stored& values = placements[u].groups[g].*held;
      if (values.extent == Extent::kNothing || values.tier != Tier::kFile) continue;
      const int64_t stored = ceil_div(values.bytes(units[u].groups[g].layout), int64_t{sizeof(float)});
      groups.push_back({align_up(stored, kBlockNumel), /*slots=*/1,
                        concat(what, " of group ", g, " of unit '", units[u].name, "'")});
    }
  }
  return groups;
}

}  // namespace

std::vector<ChunkGroup> groups_in_file(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements) {
  std::vector<ChunkGroup> groups;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const GroupPlacement& place = placements[u].groups[g];
      if (place.state_tier() != Tier::kFile) continue;
      const ShardLayout& layout = units[u].groups[g].layout;
      int slots = 0, narrow_slots = 0, narrow_bytes = 2;
      for (const Stored* held : {&place.master_weights, &place.moments}) {
        if (held->extent == Extent::kNothing) continue;
        slots += held->values;
        if (element_size(held->dtype) == 4) continue;
        narrow_slots += held->values;
        narrow_bytes = int(element_size(held->dtype));
      }
      groups.push_back({place.states_on(Tier::kFile, layout), slots,
                        concat("group ", g, " of unit '", units[u].name, "'"), narrow_slots, narrow_bytes});
    }
  }
  return groups;
}

int64_t swap_memory_bytes(std::span<const ChunkGroup> groups, int buffer_count) {
  return ChunkTotals(groups).memory_bytes(buffer_count);
}

std::vector<ChunkGroup> parameters_in_file(std::span<const UnitLayout> units,
                                           std::span<const UnitPlacement> placements) {
  return values_in_file(units, placements, &GroupPlacement::parameters, "parameters");
}

std::vector<ChunkGroup> gradients_in_file(std::span<const UnitLayout> units,
                                          std::span<const UnitPlacement> placements) {
  return values_in_file(units, placements, &GroupPlacement::reduced_gradients, "gradients");
}

int parameter_chunks(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements,
                     const PlanOptions& options) {
  constexpr int64_t kChunkBytes = kChunkNumel * int64_t{sizeof(float)};
  int64_t bytes = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const Stored& parameters = placements[u].groups[g].parameters;
      if (parameters.tier != Tier::kFile) continue;
      const int64_t numel = std::min(parameters.numel(units[u].groups[g].layout), options.parameter_buffer_numel);
      bytes = std::max(bytes, numel * parameters.element_bytes());
    }
  }
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  const int64_t chunks = ceil_div(bytes, kChunkBytes);
  return int(std::min(kMost / std::max<int64_t>(chunks, 1), int64_t{options.parameter_buffers}) * chunks);
}

}  // namespace zeroshard

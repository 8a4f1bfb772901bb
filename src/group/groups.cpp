#include "group/groups.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

std::unique_ptr<OptimizerStates> cut_states(const ShardLayout& layout, const GroupPlacement& place, Carver& masters,
                                            std::vector<Carver>& moments) {
  StateTensors tensors;
  const auto cut = [&](Carver& from, const Held& held) { return from.take(held.dtype, held.numel(layout)); };
  if (place.master_weights.extent != Extent::kNothing) tensors.master = cut(masters, place.master_weights);
  if (place.moments.extent != Extent::kNothing)
    for (Carver& slot : moments) tensors.moments.push_back(cut(slot, place.moments));
  return std::make_unique<MemoryStates>(std::move(tensors));
}

}  // namespace

Groups::Groups(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, const Options& options,
               Comm& comm, Ledger& ledger) {
  int64_t parameter_bytes = 0, master_bytes = 0, moment_bytes = 0;
  int slots = 0;
  size_t count = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g, ++count) {
      const ShardLayout& layout = units[u].groups[g].layout;
      const GroupPlacement& place = placements[u].groups[g];
      for (const Held& held : {place.parameters, place.master_weights, place.moments})
        ZS_ASSERT(held.tier == Tier::kDevice, "unit ", units[u].name, " has state on the tier ", name_of(held.tier));
      parameter_bytes += place.parameters.bytes(layout);
      master_bytes += place.master_weights.bytes(layout);
      if (place.moments.extent == Extent::kNothing) continue;
      slots = place.moments.values;
      moment_bytes += place.moments.bytes(layout) / slots;  // of one slot
    }
  }
  const auto allocate = [&](int64_t bytes, Category category) {
    if (bytes == 0) return Carver();
    states_memory_.emplace_back(bytes, options.device, ledger, category);
    return Carver(states_memory_.back(), options.device);
  };
  Carver masters = allocate(master_bytes, Category::kMasterWeights);
  std::vector<Carver> moments;
  for (int slot = 0; slot < slots; ++slot) moments.push_back(allocate(moment_bytes, Category::kMoments));
  parameters_memory_ = FlatBuffer(comm, parameter_bytes, options.device, ledger, Category::kParameters, "parameters");
  Carver parameters(parameters_memory_, options.device);

  groups_.reserve(count);  // trained_ points at them
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitLayout& unit = units[u];
    first_of_.push_back(groups_.size());
    for (size_t g = 0; g < unit.groups.size(); ++g) {
      const FlatGroup& flat = unit.groups[g];
      const GroupPlacement& place = placements[u].groups[g];
      ShardedGroup::Options group;
      group.rank = comm.rank();
      group.number = trained_.size();
      group.is_open = placements[u].parameters != Placement::kSharded;
      for (const size_t i : flat.params)
        group.param_group.push_back(options.param_groups.empty() ? 0 : options.param_groups.at(u).at(i));
      std::unique_ptr<OptimizerStates> states;
      if (flat.requires_grad) states = cut_states(flat.layout, place, masters, moments);
      groups_.emplace_back(unit, g, placements[u], std::move(group),
                           parameters.take(flat.dtype, place.parameters.numel(flat.layout)), std::move(states));
      if (flat.requires_grad) trained_.push_back(&groups_.back());
    }
  }
  first_of_.push_back(groups_.size());
}

std::span<ShardedGroup> Groups::of_unit(size_t unit) {
  return std::span(groups_).subspan(first_of_.at(unit), first_of_.at(unit + 1) - first_of_[unit]);
}

void Groups::free_states() {
  for (ShardedGroup& group : groups_) group.free_states();
  trained_.clear();
  states_memory_.clear();
}

}  // namespace zeroshard

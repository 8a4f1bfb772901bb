#include "placement/placement.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/shown_text.h"
#include "config/unit_pattern.h"

namespace zeroshard {
namespace {

// Returns whether ranks gather and reduce shards, if the stage asks for it. Several ranks do so. A single rank does so
// if its parameters are offloaded at stage 3, because it gathers them from their tier, or if
// PlacementOptions::shard_one_rank is set.
bool has_shards(const PlacementOptions& options) {
  const bool from_tier = options.stage == 3 && options.parameter_tier != Tier::kDevice;
  return options.world_size > 1 || options.shard_one_rank || from_tier;
}

// Returns whether each rank keeps only its own part of the gradients. This is so at stages 2 and 3 if there are several
// ranks, or if a single rank has shards (see has_shards()). Such gradients are packed in the reduce ring.
bool shards_gradients(const PlacementOptions& options) {
  return options.stage >= 2 && (has_shards(options) || options.parts > 1);
}

// Returns the tier of a gathered unit's parameter shards. This is PlacementOptions::parameter_tier, except for
// trainable fp32 parameters, which can be their own master weights. If a device updates some or all of them, they stay
// on the device, because otherwise it would need the same memory for master weights. If
// PlacementOptions::masters_in_memory is set, they are in memory instead of in files.
Tier tier_of_parameters(DType dtype, bool requires_grad, bool device_updates, const PlacementOptions& options) {
  const bool are_masters = requires_grad && dtype == DType::kFloat32;
  if (are_masters && device_updates) return Tier::kDevice;
  const bool may_use_files = !are_masters || !options.masters_in_memory;
  return options.parameter_tier != Tier::kFile || may_use_files ? options.parameter_tier : host_tier(options.on_device);
}

std::vector<std::string> names_of(std::span<const UnitLayout> units) {
  std::vector<std::string> names;
  for (const UnitLayout& unit : units) names.push_back(unit.name);
  return names;
}

// Moves the parameters of groups from files back to memory. Visits the groups in the order of the units, and skips each
// group that has more elements than are left of parameters_in_memory.
void keep_in_memory(std::span<const UnitLayout> units, const PlacementOptions& options,
                    std::vector<UnitPlacement>& table) {
  int64_t left = options.parameters_in_memory;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      Stored& parameters = table[u].groups[g].parameters;
      const int64_t numel = parameters.numel(units[u].groups[g].layout);
      if (parameters.tier != Tier::kFile || numel > left) continue;
      parameters.tier = host_tier(options.on_device);
      left -= numel;
    }
  }
}

}  // namespace

std::string_view name_of(Placement placement) {
  switch (placement) {
    case Placement::kReplicated:
      return "replicated";
    case Placement::kSharded:
      return "sharded";
    case Placement::kPersistent:
      return "persistent";
  }
  return "";
}

std::string_view name_of(Extent extent) {
  switch (extent) {
    case Extent::kNothing:
      return "nothing";
    case Extent::kPart:
    case Extent::kShard:
      return "sharded";
    case Extent::kWhole:
      return "replicated";
  }
  return "";
}

int64_t Stored::numel(const ShardLayout& layout) const {
  if (extent == Extent::kNothing) return 0;
  if (extent == Extent::kPart) return layout.part_numel();
  return extent == Extent::kWhole ? layout.padded_numel() : layout.shard_numel();
}

int64_t Stored::block_bytes() const {
  const int64_t of_scales = scales && extent != Extent::kNothing ? int64_t{sizeof(float)} * values : 0;
  return element_bytes() * kScaledNumel + of_scales;
}

int64_t Stored::bytes(const ShardLayout& layout) const {
  int64_t sum = 0;
  for (const Tier where : kTiers) sum += bytes_on(where, layout);
  return sum;
}

int64_t Stored::numel_on(Tier where, const ShardLayout& layout) const {
  const int64_t all = numel(layout);
  if (where != Tier::kDevice && where != tier) return 0;
  const auto blocks = int64_t(std::ceil(share * double(all / kBlockNumel)));
  const int64_t away = tier == Tier::kDevice ? 0 : std::min(blocks * kBlockNumel, all);
  if (where != Tier::kDevice) return away;
  return has_rest || tier == Tier::kDevice ? all - away : 0;
}

int64_t Stored::bytes_on(Tier where, const ShardLayout& layout) const {
  const int64_t of_scales = scales == where ? block_bytes() - element_bytes() * kScaledNumel : 0;
  return element_bytes() * numel_on(where, layout) + of_scales * (numel(layout) / kScaledNumel);
}

int64_t GroupPlacement::states_on(Tier where, const ShardLayout& layout) const {
  return std::max(master_weights.numel_on(where, layout), moments.numel_on(where, layout));
}

int64_t GroupPlacement::numel_of_host(const ShardLayout& layout) const {
  if (!host_updates) return 0;
  const Stored& states = moments.extent != Extent::kNothing ? moments : master_weights;
  if (states.extent != Extent::kNothing) return states.numel_on(states.tier, layout);
  return updated_numel(layout);
}

int64_t GroupPlacement::updated_numel(const ShardLayout& layout) const {
  return Stored{updated}.numel(layout);
}

bool shards_parameters(const PlacementOptions& options) {
  return options.stage == 3 && has_shards(options);
}

GroupPlacement place_group(DType dtype, bool requires_grad, Placement parameters, const PlacementOptions& options) {
  GroupPlacement place;
  const bool can_leave = options.stage >= 1;
  const Tier gradient_tier = can_leave ? options.gradient_tier : Tier::kDevice;
  const Tier state_tier = can_leave && options.state_share > 0 ? options.state_tier : Tier::kDevice;
  const double state_share = state_tier == Tier::kDevice ? 1 : options.state_share;
  place.parameters = {parameters == Placement::kReplicated ? Extent::kWhole : Extent::kShard, dtype};
  place.host_updates = requires_grad && (state_tier == Tier::kHost || (state_tier == Tier::kFile && options.on_device));
  // Whether the device updates some or all elements.
  const bool device_updates = options.on_device && (!place.host_updates || state_share < 1);
  // Only the shards of gathered units can leave the device. The shards of persistent units stay, because the device has
  // their gathered parameters anyway.
  const bool is_gathered = options.stage == 3 && parameters == Placement::kSharded;
  if (is_gathered) place.parameters.tier = tier_of_parameters(dtype, requires_grad, device_updates, options);
  if (!requires_grad) return place;
  // Optimizer states are sharded from stage 1 on.
  place.updated = options.stage >= 1 ? Extent::kPart : Extent::kWhole;
  place.wire_dtype = options.wire_dtype.value_or(dtype);
  const bool accumulates = options.grad_accumulation_steps > 1;
  place.grad_dtype = options.grad_dtype.value_or(accumulates ? DType::kFloat32 : place.wire_dtype);
  // Sharded or offloaded gradients are packed in the reduce ring, and reduced gradients then have other memory. All
  // other gradients are packed in a buffer of their own, in the wire dtype. They are reduced in place, unless reduced
  // gradients have another dtype, or the packed gradients of a later micro-batch would overwrite reduced ones.
  const bool passes_ring = shards_gradients(options) || gradient_tier != Tier::kDevice;
  if (!passes_ring) place.packed_gradients = {Extent::kWhole, place.wire_dtype};
  const bool in_place = !passes_ring && !accumulates && place.grad_dtype == place.wire_dtype;
  if (!in_place) place.reduced_gradients = {place.updated, place.grad_dtype, /*values=*/1, gradient_tier};
  place.device_updates_offloaded_parameters = device_updates && place.parameters.tier != Tier::kDevice;
  // fp32 parameters are their own master weights, unless they are on a device and the host updates them.
  if (dtype != DType::kFloat32 || place.host_updates_device_parameters()) {
    place.master_weights = {place.updated, DType::kFloat32, /*values=*/1, state_tier, state_share};
    place.master_weights.has_rest = dtype != DType::kFloat32 || state_share == 1;
  }
  // If no device updates the group, moments have the configured dtype. If a device updates all elements, moments are
  // fp32 or 8-bit codes. If a device updates only some elements, all moments are fp32.
  const bool keeps_dtype = !device_updates || (options.moment_dtype == kCodes && !place.host_updates);
  const DType moment_dtype = keeps_dtype ? options.moment_dtype : DType::kFloat32;
  if (options.optimizer_slots > 0)
    place.moments = {place.updated, moment_dtype, options.optimizer_slots, state_tier, state_share};
  if (moment_dtype == kCodes) place.moments.scales = device_updates ? Tier::kDevice : host_tier(options.on_device);
  return place;
}

std::vector<UnitPlacement> place(std::span<const UnitLayout> units, const PlacementOptions& options) {
  std::vector<UnitPlacement> table;
  std::vector<bool> used(options.rules.size(), false);
  for (const PlacementRule& rule : options.rules) {
    const std::string problem = problem_of_pattern(rule.units);
    ZS_CHECK(problem.empty(), "zeroshard.placement: '", rule.units, "' ", problem);
  }
  for (const UnitLayout& unit : units) {
    UnitPlacement place;
    if (shards_parameters(options)) {
      const bool small = unit.numel() <= options.persistence_threshold;
      place.parameters = small ? Placement::kPersistent : Placement::kSharded;
    }
    for (size_t i = 0; i < options.rules.size(); ++i) {
      if (!names_unit(options.rules[i].units, unit.name)) continue;
      used[i] = true;
      if (shards_parameters(options))
        place.parameters = options.rules[i].replicated ? Placement::kReplicated : Placement::kSharded;
    }
    for (const FlatGroup& group : unit.groups) {
      PlacementOptions own = options;
      if (group.is_matrix) own.optimizer_slots = 1;  // Muon keeps only the momentum of a matrix
      if (!group.is_coded && own.moment_dtype == kCodes) own.moment_dtype = DType::kFloat32;
      place.groups.push_back(place_group(group.dtype, group.requires_grad, place.parameters, own));
    }
    table.push_back(std::move(place));
  }
  keep_in_memory(units, options, table);
  for (size_t i = 0; i < used.size(); ++i)
    ZS_CHECK(used[i], "zeroshard.placement[", i, "].units is '", options.rules[i].units,
             "', which names no unit of the model; its units are ", some_of(names_of(units)));
  return table;
}

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "zeroshard/placement.h"

// The table of placements says which parameters, gradients and optimizer states each rank holds, and on which tier. It
// is computed once from the configuration, the layouts and the number of ranks. Code that plans, allocates, gathers,
// updates or saves reads this table and never checks the ZeRO stage.
namespace zeroshard {

// Says how long a unit's full parameters exist.
enum class Placement : uint8_t {
  kReplicated,  // always whole on every rank, if shards_parameters() is false or a rule says so
  kSharded,     // gathered before use, then freed
  kPersistent,  // small and sharded, gathered once after each optimizer update and kept until the next one
};
std::string_view name_of(Placement placement);

// Says which elements of a flat group one rank holds. kPart is this rank's part of the optimizer states. kPart is the
// same as kShard unless several groups of ranks share one copy of the states (see ShardLayout).
enum class Extent : uint8_t { kNothing, kPart, kShard, kWhole };
std::string_view name_of(Extent extent);

// The values of one kind that a rank holds for one group during the whole run. The kinds are parameters, packed or
// reduced gradients, master weights, and moments.
struct Stored {
  Extent extent = Extent::kNothing;
  DType dtype = DType::kFloat32;
  int values = 1;  // values for each element, such as 2 for the moments of Adam
  Tier tier = Tier::kDevice;
  // The share of the elements that is on `tier`. These are the first elements, rounded up to whole blocks of
  // kBlockNumel. The other elements are on the device if `has_rest` is true, and are not stored otherwise. If `tier` is
  // kDevice, all elements are there, whatever `share` is.
  double share = 1;
  bool has_rest = true;
  // Set for 8-bit codes: the tier of their scales. There is one scale for each kScaledNumel values. Scales are in
  // memory even if the codes are in files.
  std::optional<Tier> scales = std::nullopt;

  int64_t element_bytes() const { return extent == Extent::kNothing ? 0 : element_size(dtype) * values; }
  // Returns the bytes of kScaledNumel elements, including their scales.
  int64_t block_bytes() const;
  int64_t numel(const ShardLayout& layout) const;  // all elements, even those not stored; each has `values` values
  int64_t bytes(const ShardLayout& layout) const;
  // numel_on() returns the number of elements on the tier `where`. bytes_on() returns all bytes on that tier, including
  // scales.
  int64_t numel_on(Tier where, const ShardLayout& layout) const;
  int64_t bytes_on(Tier where, const ShardLayout& layout) const;
  bool operator==(const Stored&) const = default;
};

struct GroupPlacement {
  Stored parameters;  // without buffers of gathered parameters
  // Only trainable groups have the following members.
  // In the dtype of communication. kNothing: gradients are packed in a slot of the reduce ring.
  Stored packed_gradients;
  Stored reduced_gradients;  // kNothing: they overwrite packed gradients of the elements `updated`
  Stored master_weights, moments;
  DType wire_dtype = DType::kFloat32;  // dtype of gradients in communication
  DType grad_dtype = DType::kFloat32;  // dtype of reduced gradients
  Extent updated = Extent::kNothing;   // the elements that this rank's optimizer updates
  bool host_updates = false;           // some or all states are offloaded from a device, and the host updates them
  // Whether the parameters are offloaded while the device keeps some or all of their optimizer states. The device then
  // updates the elements whose states it keeps, and the parameters of these elements pass through it.
  bool device_updates_offloaded_parameters = false;

  // Returns the tier of master weights and moments. If their `share` is below 1, this is the tier of the first
  // elements, and the others are on the device, or not stored (see Stored::has_rest). A group can have only master
  // weights, or only moments. Returns kDevice if it has neither.
  Tier state_tier() const {
    if (moments.extent != Extent::kNothing) return moments.tier;
    return master_weights.extent != Extent::kNothing ? master_weights.tier : Tier::kDevice;
  }
  // Returns whether the host updates parameters that are on a device.
  bool host_updates_device_parameters() const { return host_updates && parameters.tier == Tier::kDevice; }
  // Returns whether the host updates with gradients that are on a device.
  bool fetches_gradients() const { return host_updates && reduced_gradients.tier == Tier::kDevice; }
  // Returns whether reduced gradients are offloaded from a device to the host or to files.
  bool gradients_leave() const { return host_updates && reduced_gradients.tier != Tier::kDevice; }
  // Returns the number of elements whose states are on the tier `where`.
  int64_t states_on(Tier where, const ShardLayout& layout) const;
  // Returns how many of this rank's elements the host updates instead of the ranks' device. These are the first
  // elements. The device updates the others. Returns 0 if the ranks' device is the CPU.
  int64_t numel_of_host(const ShardLayout& layout) const;
  // Returns the elements whose gradients the host fetches from a device to update them. Positions count from the first
  // element that this rank updates.
  Range fetched(const ShardLayout& layout) const {
    return fetches_gradients() ? Range{0, numel_of_host(layout)} : Range{};
  }
  // Returns how many elements this rank's optimizer updates.
  int64_t updated_numel(const ShardLayout& layout) const;
  // Returns whether some states are in files, while a device updates other elements of the group.
  bool is_split_beside_device(const ShardLayout& layout) const {
    return host_updates && state_tier() == Tier::kFile && numel_of_host(layout) < updated_numel(layout);
  }
  bool updates_whole() const { return updated == Extent::kWhole; }
  // Returns whether gradients are packed in a buffer of their own. If not, they are packed in a slot of the reduce
  // ring.
  bool keeps_packed() const { return packed_gradients.extent != Extent::kNothing; }
  bool reduces_in_place() const { return keeps_packed() && reduced_gradients.extent == Extent::kNothing; }
  bool operator==(const GroupPlacement&) const = default;
};

struct UnitPlacement {
  Placement parameters = Placement::kReplicated;
  std::vector<GroupPlacement> groups;  // parallel to UnitLayout::groups

  bool operator==(const UnitPlacement&) const = default;
};

// Places a group of parameters. `parameters` is the placement of the group's unit. The caller must adapt the moments in
// `options` to the group, as place() does.
GroupPlacement place_group(DType dtype, bool requires_grad, Placement parameters, const PlacementOptions& options);
// Returns whether units can have sharded parameters. They can at stage 3 if there are several ranks. A single rank's
// parameters are sharded at stage 3 only if they are offloaded, or if PlacementOptions::shard_one_rank is set.
bool shards_parameters(const PlacementOptions& options);
// Returns the table of placements, with one entry per unit. Rules have an effect only if shards_parameters() is true.
// Throws ValueError for a rule that is malformed or matches no unit, at any stage.
std::vector<UnitPlacement> place(std::span<const UnitLayout> units, const PlacementOptions& options);

}  // namespace zeroshard

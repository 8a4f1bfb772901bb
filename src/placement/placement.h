#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "zeroshard/placement.h"

// A table of what state each rank has, and where. It is computed once from the configuration, the layouts and the
// number of ranks. Code that plans, allocates, gathers, updates or saves reads this table and never checks the stage.
namespace zeroshard {

// Says how long a unit's full parameters exist.
enum class Placement : uint8_t {
  kReplicated,  // always whole on every rank (stages 0-2, a single rank, or by a rule)
  kSharded,     // gathered before use, then freed
  kPersistent,  // sharded, but small: gathered once after each optimizer update and kept until the next one
};
std::string_view name_of(Placement placement);

// The elements of a flat group that one rank holds. kPart is the whole shard unless several groups of ranks share the
// states (see ShardLayout).
enum class Extent : uint8_t { kNothing, kPart, kShard, kWhole };
std::string_view name_of(Extent extent);

// The elements of a group that one rank has for one purpose, during the whole run.
struct Held {
  Extent extent = Extent::kNothing;
  DType dtype = DType::kFloat32;
  int values = 1;  // for each element
  Tier tier = Tier::kDevice;
  // The share of the elements that is on `tier`. These are the first elements, rounded up to whole blocks. The other
  // elements are on the device if `has_rest` is true. Otherwise they are not stored.
  double share = 1;
  bool has_rest = true;
  // The tier of the scales of 8-bit codes, one for each kScaledNumel elements. If the codes are in files, their scales
  // are still in memory.
  std::optional<Tier> scales = std::nullopt;

  int64_t element_bytes() const { return extent == Extent::kNothing ? 0 : element_size(dtype) * values; }
  // Returns the bytes of kScaledNumel elements, including their scales.
  int64_t block_bytes() const;
  int64_t numel(const ShardLayout& layout) const;  // elements on all tiers; each has `values` values
  int64_t bytes(const ShardLayout& layout) const;
  // numel_on() returns the number of elements on the tier `where`, and bytes_on() returns their bytes.
  int64_t numel_on(Tier where, const ShardLayout& layout) const;
  int64_t bytes_on(Tier where, const ShardLayout& layout) const;
  bool operator==(const Held&) const = default;
};

struct GroupPlacement {
  Held parameters;  // without gathered parameters
  // Only trainable groups have the following members.
  Held packed_gradients;   // in the dtype of communication; kNothing: gradients are packed in a slot of the reduce ring
  Held reduced_gradients;  // kNothing: reduced gradients overwrite the packed ones, for the elements `updated`
  Held master_weights, moments;
  DType wire_dtype = DType::kFloat32;  // dtype of gradients in communication
  DType grad_dtype = DType::kFloat32;  // dtype of reduced gradients
  Extent updated = Extent::kNothing;   // the elements that this rank's optimizer updates
  bool host_updates = false;           // with a device: whether the states are offloaded and the host updates
  // Whether 16-bit parameters are offloaded, while the device keeps and updates some or all of their optimizer states.
  bool sends_parameters = false;

  // Returns the tier of master weights and moments. If `share` is below 1, the other elements are on the device. A
  // group can have master weights without moments, or moments without master weights. Returns kDevice if it has
  // neither.
  Tier state_tier() const {
    if (moments.extent != Extent::kNothing) return moments.tier;
    return master_weights.extent != Extent::kNothing ? master_weights.tier : Tier::kDevice;
  }
  // Returns whether the host updates parameters that are on a device.
  bool updates_on_host() const { return host_updates && parameters.tier == Tier::kDevice; }
  // Returns whether the host updates with gradients that are on a device.
  bool fetches_gradients() const { return host_updates && reduced_gradients.tier == Tier::kDevice; }
  // Returns whether reduced gradients are offloaded from a device to the host or to files.
  bool gradients_leave() const { return host_updates && reduced_gradients.tier != Tier::kDevice; }
  // Returns the number of elements whose states are on the tier `where`.
  int64_t states_on(Tier where, const ShardLayout& layout) const;
  // Returns the number of elements that the host updates. They are the first of this rank's elements. The device
  // updates the others.
  int64_t numel_of_host(const ShardLayout& layout) const;
  bool updates_whole() const { return updated == Extent::kWhole; }
  // Returns whether gradients have a packed buffer of their own. If not, they are packed in a slot of the reduce ring.
  bool keeps_packed() const { return packed_gradients.extent != Extent::kNothing; }
  bool reduces_in_place() const { return keeps_packed() && reduced_gradients.extent == Extent::kNothing; }
  bool operator==(const GroupPlacement&) const = default;
};

struct UnitPlacement {
  Placement parameters = Placement::kReplicated;
  std::vector<GroupPlacement> groups;  // parallel to UnitLayout::groups

  bool operator==(const UnitPlacement&) const = default;
};

// Places a group of parameters. `parameters` is the placement of the group's unit.
GroupPlacement place_group(DType dtype, bool requires_grad, Placement parameters, const PlacementOptions& options);
// Returns whether parameters are sharded, which is so at stage 3 if there are several ranks. The parameters of a single
// rank are sharded only if they are on another tier, or if PlacementOptions::shard_one_rank is set.
bool shards_parameters(const PlacementOptions& options);
// Returns the table of a run. Rules matter only at stage 3. Throws ValueError for a rule that is malformed or matches
// no unit.
std::vector<UnitPlacement> place(std::span<const UnitLayout> units, const PlacementOptions& options);

}  // namespace zeroshard

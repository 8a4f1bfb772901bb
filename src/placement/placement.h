#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "zeroshard/placement.h"

// Where the state of a run lies, as data. It is computed once, from configuration, layouts and number of ranks. Code
// that plans, allocates, gathers, updates or saves reads this table and never checks the stage.
namespace zeroshard {

// How a unit's full parameters live.
enum class Placement : uint8_t {
  kReplicated,  // always whole on every rank (stages 0-2, one rank, or as a rule says)
  kSharded,     // gathered for use, then freed
  kPersistent,  // sharded, but small: gathered once per optimizer update and kept until the next
};
std::string_view name_of(Placement placement);

// How much of a flat group one rank holds.
enum class Extent : uint8_t { kNothing, kShard, kWhole };
std::string_view name_of(Extent extent);

// What one rank holds of a group, for one purpose, for the whole run.
struct Held {
  Extent extent = Extent::kNothing;
  DType dtype = DType::kFloat32;
  int values = 1;  // per element
  Tier tier = Tier::kDevice;
  // Of the elements, the share that lies on `tier`: rounded up to whole blocks, from the first element on. Those after
  // them lie on the device, or, without a rest, nowhere.
  double share = 1;
  bool has_rest = true;
  // Where the scales of 8-bit codes lie, one for each kScaledNumel elements: in memory, also of codes in files.
  std::optional<Tier> scales = std::nullopt;

  int64_t element_bytes() const { return extent == Extent::kNothing ? 0 : element_size(dtype) * values; }
  // Of kScaledNumel elements, scales included.
  int64_t block_bytes() const;
  int64_t numel(const ShardLayout& layout) const;  // elements, of which each has `values`
  int64_t bytes(const ShardLayout& layout) const;
  // Those that lie there.
  int64_t numel_on(Tier where, const ShardLayout& layout) const;
  int64_t bytes_on(Tier where, const ShardLayout& layout) const;
  bool operator==(const Held&) const = default;
};

struct GroupPlacement {
  Held parameters;  // besides what is gathered of them
  // Of trainable groups only.
  Held packed_gradients;   // in the dtype of communication; kNothing: they use a slot of the reduce ring
  Held reduced_gradients;  // kNothing: they overwrite the packed ones, to the extent of `updated`
  Held master_weights, moments;
  DType wire_dtype = DType::kFloat32;  // of gradients that travel
  DType grad_dtype = DType::kFloat32;  // of reduced ones
  Extent updated = Extent::kNothing;   // what this rank's optimizer updates
  bool host_updates = false;           // beside a device: the states have left it, and the host updates
  // 16-bit parameters have left the device, which has the states of all of them or of a part, and updates these.
  bool sends_parameters = false;

  // Where master weights and moments lie: on one tier, of a share below 1 the rest on the device. A group may have
  // either alone; kDevice if neither.
  Tier state_tier() const {
    if (moments.extent != Extent::kNothing) return moments.tier;
    return master_weights.extent != Extent::kNothing ? master_weights.tier : Tier::kDevice;
  }
  // The host updates parameters of another device.
  bool updates_on_host() const { return host_updates && parameters.tier == Tier::kDevice; }
  // The host updates with gradients that lie on a device.
  bool fetches_gradients() const { return host_updates && reduced_gradients.tier == Tier::kDevice; }
  // Reduced gradients leave a device, for the host or for files beside it.
  bool gradients_leave() const { return host_updates && reduced_gradients.tier != Tier::kDevice; }
  // Elements whose states lie there.
  int64_t states_on(Tier where, const ShardLayout& layout) const;
  // Elements that the host updates beside a device, from this rank's first on. The device updates those behind them.
  int64_t numel_of_host(const ShardLayout& layout) const;
  bool updates_whole() const { return updated == Extent::kWhole; }
  // Otherwise gradients are packed in a slot of the reduce ring.
  bool keeps_packed() const { return packed_gradients.extent != Extent::kNothing; }
  bool reduces_in_place() const { return keeps_packed() && reduced_gradients.extent == Extent::kNothing; }
  bool operator==(const GroupPlacement&) const = default;
};

struct UnitPlacement {
  Placement parameters = Placement::kReplicated;
  std::vector<GroupPlacement> groups;  // as UnitLayout::groups

  bool operator==(const UnitPlacement&) const = default;
};

// A group of parameters that are, when a unit is not in use, replicated or sharded.
GroupPlacement place_group(DType dtype, bool requires_grad, Placement parameters, const PlacementOptions& options);
// Stage 3 shards parameters. A world of one keeps them whole, unless it is to have the shape of shards, or its
// parameters lie on another tier.
bool shards_parameters(const PlacementOptions& options);
// The table of a run. Rules count at stage 3 alone. Throws ValueError for one that is not well formed or names no unit.
std::vector<UnitPlacement> place(std::span<const UnitLayout> units, const PlacementOptions& options);

}  // namespace zeroshard

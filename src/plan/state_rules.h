#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "zeroshard/plan.h"

// The bytes that the runtime holds beyond the table of placements: the rings. The engine sizes its buffers with these
// functions and the planner sums them, so the two cannot drift apart.
namespace zeroshard {

// Slots of one size that units of that size share.
struct RingClass {
  int64_t slot_bytes = 0;
  int slots = 0;
  int units = 0;

  int64_t bytes() const { return slot_bytes * slots; }
  bool operator==(const RingClass&) const = default;
};
// The slots of each size, as a ring is made of them.
std::map<int64_t, int> slots_by_size(std::span<const RingClass> ring);

// How many units of `unit_bytes` are gathered ahead: one, and more for small units, so that ranks need not wait for one
// another at each unit.
int prefetch_depth(int64_t unit_bytes, const PlanOptions& options);
// One slot for the unit that computes, one for the unit before it that may still be read, one per unit prefetched.
int gather_slots(int units, int64_t unit_bytes, const PlanOptions& options);
// One slot that fills while the other is reduced; small groups have more, as above.
int reduce_slots(int units, int64_t bytes);

// Bytes of a group's gradients as they are packed for the reduction, padding included; 0 for a frozen group. Groups of
// a unit are reduced on their own, so each takes a slot.
int64_t wire_bytes(const FlatGroup& group, const GroupPlacement& place);

using PlacementTable = std::span<const UnitPlacement>;
// Size classes, smallest first. Persistent units have a full buffer each, outside the classes but in the same category.
std::vector<RingClass> gather_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
std::vector<RingClass> reduce_ring(std::span<const UnitLayout> units, PlacementTable table);
// Where pieces of the peers' gradients arrive: the largest group's wire bytes, twice when reductions overlap. Every
// stage exchanges gradients and needs it; 0 if the transport needs none or there are no peers.
RingClass exchange_scratch(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// Where reduced gradients go to the host: buffers of the device in which they are summed, each as large as the largest
// group's. While one is copied the next is filled. `units`: the groups whose gradients go.
RingClass gradient_exit(std::span<const UnitLayout> units, PlacementTable table);

// Elements of parameters that go to the host, where their optimizer states lie, and back at a time.
inline constexpr int64_t kCopiedNumel = 1 << 22;
// Where they are of 16 bits: the buffers of host memory through which they go. One is filled, one is in use, one is
// being sent back.
RingClass parameter_copies(std::span<const UnitLayout> units, PlacementTable table);
// Bytes on the host: new parameters that wait there for the end of the next step (PlacementOptions::delayed_update).
int64_t pending_parameters(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
// Where the device updates parameters that have left it: its buffers through which they go. One is filled while the
// other is sent.
RingClass shard_copies(std::span<const UnitLayout> units, PlacementTable table);

// Elements of reduced gradients that come to the host at a time, where the host updates and they stay on a device.
inline constexpr int64_t kFetchedNumel = 1 << 20;
// The buffers of host memory through which they come: one is in use while the next is filled.
RingClass gradient_fetch(std::span<const UnitLayout> units, PlacementTable table);

// Held on the host from the first asynchronous save on: a copy of what a rank saves. That is its shard of the weights
// (fp32 if they are trained) and of the optimizer's states, at every stage. Of groups whose states lie in files there
// is no copy, but of whole fp32 parameters, to which users may write; of parameters in files neither. Buffers of the
// model are not counted.
int64_t checkpoint_staging_bytes(std::span<const UnitLayout> units, const PlanOptions& options);

// Throws ValueError for options that no run can have.
void check_plan_options(const PlanOptions& options);

}  // namespace zeroshard

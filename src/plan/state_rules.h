#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "zeroshard/plan.h"

// Computes the sizes of the rings, which the runtime has in addition to what is in the table of placements. The engine
// sizes its buffers with these functions, and the planner adds up their results, so the two cannot disagree.
namespace zeroshard {

// Slots of one size, and the number of units that share them.
struct RingClass {
  int64_t slot_bytes = 0;
  int slots = 0;
  int units = 0;

  int64_t bytes() const { return slot_bytes * slots; }
  bool operator==(const RingClass&) const = default;
};
// Returns the number of slots of each size, in the form that the constructor of SlotRing takes.
std::map<int64_t, int> slots_by_size(std::span<const RingClass> ring);

// Returns how many units of `unit_bytes` are gathered ahead. That is one, or more for small units, so that ranks need
// not wait for one another at each unit.
int prefetch_depth(int64_t unit_bytes, const PlanOptions& options);
// Returns the number of slots for `units` units of `unit_bytes`: one for the unit that computes, one for the previous
// unit, which peers might still read, and one for each prefetched unit. There are never more slots than units.
int gather_slots(int units, int64_t unit_bytes, const PlanOptions& options);
// Returns the number of slots for gradients. One slot is filled while the other is reduced. Small groups have more
// slots, so that ranks need not wait for one another at each group.
int reduce_slots(int units, int64_t bytes);

// Returns the bytes of a group's gradients when they are packed for the reduction, including padding. Returns 0 for a
// frozen group. Each group of a unit is reduced separately, so each takes a slot.
int64_t wire_bytes(const FlatGroup& group, const GroupPlacement& place);

using PlacementTable = std::span<const UnitPlacement>;
// Returns the size classes of the ring, smallest first. A persistent unit has a full buffer of its own, which counts in
// the same category, but is in no class.
std::vector<RingClass> gather_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
std::vector<RingClass> reduce_ring(std::span<const UnitLayout> units, PlacementTable table);
// Returns the memory in which pieces of the peers' gradients arrive. It has the wire bytes of the largest group, and
// twice as many if reductions overlap. Every stage needs it to exchange gradients. It is empty if the transport needs
// none, or if there are no peers.
RingClass exchange_scratch(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// Returns how many elements of memory a sum of `numel` elements over replicas needs. The replicas cut the sum into
// equal pieces. Pieces of 8-bit codes consist of whole blocks.
int64_t replica_sum_numel(int64_t numel, int replicas, bool is_coded);
// Returns the bytes of `numel` elements that replicas exchange: fp32, or codes and one scale for each block of
// kScaledNumel. Each replica's piece begins at a multiple of 64 bytes.
int64_t replica_sum_bytes(int64_t numel, int replicas, bool is_coded);
// Returns the memory in which the replicas of a shard add their gradients. It has the largest shard of a group in fp32
// and, if that group is coded, its codes. If the transport copies pieces, it also has what is sent, once more. If
// reductions overlap, it has all of this twice. It is empty if there is one replica.
RingClass replica_buffers(std::span<const UnitLayout> units, const PlanOptions& options);

// Returns whether a group's updated parameters travel between replicas as 8-bit numbers. They do if they are 16-bit, so
// that the owner has exact master weights, and if users cannot write to them without the engine.
bool refreshes_in_codes(const FlatGroup& group, Placement parameters, const PlanOptions& options);
// The number of units whose refreshes are under way at the same time.
inline constexpr int kRefreshes = 3;
// Returns the memory for these numbers: one slot for each refresh under way, with all groups of a unit.
RingClass refresh_codes(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// Returns the device buffers in which reduced gradients are summed before they go to the host. Each buffer is as large
// as the largest group's gradients. The next buffer is filled while one is copied. RingClass::units is the number of
// groups whose gradients go to the host.
RingClass gradient_exit(std::span<const UnitLayout> units, PlacementTable table);

// The number of elements of parameters that are copied at a time. They are copied to the host, where their optimizer
// states are, and back.
inline constexpr int64_t kCopiedNumel = 1 << 22;
// Returns the host buffers through which 16-bit parameters pass. At the same time one is filled, one is in use, and one
// is sent back.
RingClass parameter_copies(std::span<const UnitLayout> units, PlacementTable table);
// Returns the host bytes of new parameters that wait for the end of the next step (PlacementOptions::delayed_update).
int64_t pending_parameters(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
// Returns the device buffers through which offloaded parameters pass if the device updates them. One is filled while
// the other is sent.
RingClass shard_copies(std::span<const UnitLayout> units, PlacementTable table);

// The number of elements of reduced gradients that are copied at a time from the device to the host, if the host
// updates.
inline constexpr int64_t kFetchedNumel = 1 << 20;
// Returns the host buffers for these gradients. One is in use while the next is filled.
RingClass gradient_fetch(std::span<const UnitLayout> units, PlacementTable table);

// Returns the host bytes of the copy that asynchronous saves use. The engine allocates this memory at the first such
// save, and keeps it. At every ZeRO stage the copy has what one rank saves: this rank's part of the weights (fp32 if
// they are trained) and of the optimizer states. With replicas, that is one replica's part of the shard. Values in
// files are not copied, because the save reads them there. If the states are in files, shards of fp32 parameters are
// not copied either. But fp32 parameters that are kept whole are copied, because users can write to them. Buffers of
// the model are not counted.
int64_t checkpoint_staging_bytes(std::span<const UnitLayout> units, const PlanOptions& options);

// Throws ValueError if no run can have these options.
void check_plan_options(const PlanOptions& options);

}  // namespace zeroshard

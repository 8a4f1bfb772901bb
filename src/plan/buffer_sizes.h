#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "zeroshard/plan.h"

// Computes the sizes of rings and other buffers, which the runtime has in addition to what the table of placements
// says. The engine sizes its buffers with these functions, and the planner adds up the same results, so the two cannot
// disagree.
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

// Returns how many units of `unit_bytes` bytes are gathered ahead of the unit that computes. This is 0 if
// options.prefetch is false. Otherwise it is 1 for large units and more for small ones, so that ranks need not wait for
// one another at each small unit.
int prefetch_depth(int64_t unit_bytes, const PlanOptions& options);
// Returns the number of slots for `units` units of `unit_bytes`: one for the unit that computes, one for the previous
// unit, which peers might still read, and one for each prefetched unit. There are never more slots than units.
int gather_slots(int units, int64_t unit_bytes, const PlanOptions& options);
// Returns the number of slots for gradients. One slot is filled while the other is reduced. Small groups have more
// slots, so that ranks need not wait for one another at each group. There are never more slots than groups (`units`).
int reduce_slots(int units, int64_t bytes);

// Returns the bytes of a group's packed gradients, including padding. Returns 0 for a frozen group. The groups of a
// unit are reduced separately, so each group takes a slot.
int64_t wire_bytes(const FlatGroup& group, const GroupPlacement& place);

using PlacementTable = std::span<const UnitPlacement>;
// These two functions return the size classes of a ring, smallest first. A persistent unit has a full buffer of its own
// instead of a slot of the gather ring. That buffer counts in the same category, but is in no class.
std::vector<RingClass> gather_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
std::vector<RingClass> reduce_ring(std::span<const UnitLayout> units, PlacementTable table);
// Returns the memory in which pieces of the peers' gradients arrive. There is none if the transport does not copy
// pieces, or if there are no peers. Otherwise there are two slots if reductions overlap, and one if not, at every ZeRO
// stage. A slot has the wire bytes of the largest group.
RingClass exchange_scratch(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// Returns `numel`, the elements of a sum over replicas, with padding. The padding makes the replicas' pieces of the sum
// equally long. If `is_coded` is true, the pieces also consist of whole blocks of kScaledNumel elements.
int64_t replica_sum_numel(int64_t numel, int replicas, bool is_coded);
// Returns the bytes in which replicas exchange `numel` elements. The elements are exchanged in fp32, or, if `is_coded`
// is true, as 8-bit codes with one fp32 scale for each block of kScaledNumel. Each replica's piece begins at a multiple
// of 64 bytes.
int64_t replica_sum_bytes(int64_t numel, int replicas, bool is_coded);
// Returns the memory in which the replicas of a shard add their gradients. A slot has room for the largest shard of a
// group in fp32 and, if sums are coded, for its codes. If the transport copies pieces, a slot also has room for the
// pieces that arrive. There are two slots if reductions overlap, and one otherwise. There are none if there is one
// replica.
RingClass replica_buffers(std::span<const UnitLayout> units, const PlanOptions& options);

// Returns whether a group's updated parameters travel between replicas as 8-bit numbers. They do if
// options.quantized_weights is set and three more conditions hold. The replicas share the optimizer states, because
// otherwise no parameters travel. The parameters are trained and 16-bit, because the ranks that update them then have
// exact master weights. The unit is kSharded, because users can write to the parameters of other units without the
// engine.
bool refreshes_in_codes(const FlatGroup& group, Placement parameters, const PlanOptions& options);
// A refresh sends the updated parameters of one unit between replicas. At most this many refreshes run at a time.
inline constexpr int kRefreshes = 3;
// Returns the memory for 8-bit numbers of refreshes. There is one slot for each refresh under way. A slot has room for
// all groups of a unit.
RingClass refresh_codes(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// Returns the device buffers in which reduced gradients are summed before they are copied to the host or to files. Each
// buffer is as large as the largest group's reduced gradients. While one buffer is copied, the next one is filled.
// RingClass::units is the number of groups whose gradients are copied.
RingClass gradient_exit(std::span<const UnitLayout> units, PlacementTable table);

// The number of parameters that are copied at a time between the device and the host.
inline constexpr int64_t kCopiedNumel = 1 << 22;
// Returns the host buffers through which 16-bit parameters pass if the host updates them. While one buffer is in use,
// another is filled and a third is sent back.
RingClass parameter_copies(std::span<const UnitLayout> units, PlacementTable table);
// Returns the host bytes of new parameters that wait until the next step ends, if updates are delayed
// (PlacementOptions::delayed_update). Returns 0 otherwise.
int64_t pending_parameters(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
// Returns the device buffers through which offloaded parameters pass if the device updates them. One buffer is filled
// while the other is sent back.
RingClass shard_copies(std::span<const UnitLayout> units, PlacementTable table);

// The number of elements of reduced gradients that are copied at a time from the device to the host, if the host
// updates.
inline constexpr int64_t kFetchedNumel = 1 << 20;
// Returns the host buffers through which these gradients pass. One buffer is in use while the next is filled.
RingClass gradient_fetch(std::span<const UnitLayout> units, PlacementTable table);

// Returns the host bytes of the copy from which an asynchronous save writes. The engine allocates this memory at the
// first such save, and keeps it. At every ZeRO stage the copy has what one rank saves, which is the rank's part of the
// weights (fp32 if they are trained) and of the optimizer states. Replicas divide a shard among themselves, and each
// saves its part. Values in files are not copied, because the save reads them there. If the states are in files, the
// save reads fp32 parameters of kSharded units directly, too, wherever they are. It copies fp32 parameters of other
// units, because users can write to them. Buffers of the model are not counted.
int64_t checkpoint_staging_bytes(std::span<const UnitLayout> units, const PlanOptions& options);

// Throws ValueError if no run can have these options.
void check_plan_options(const PlanOptions& options);

}  // namespace zeroshard

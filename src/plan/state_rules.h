#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "zeroshard/plan.h"

// Computes the bytes that the runtime holds in addition to the table of placements: the rings. The engine sizes its
// buffers with these functions and the planner adds them up, so the two cannot drift apart.
namespace zeroshard {

// Slots of one size. Units of that size share them.
struct RingClass {
  int64_t slot_bytes = 0;
  int slots = 0;
  int units = 0;

  int64_t bytes() const { return slot_bytes * slots; }
  bool operator==(const RingClass&) const = default;
};
// Returns the number of slots of each size, as the constructor of a SlotRing takes them.
std::map<int64_t, int> slots_by_size(std::span<const RingClass> ring);

// Returns how many units of `unit_bytes` are gathered ahead: one, or more for small units, so that ranks need not wait
// for one another at each unit.
int prefetch_depth(int64_t unit_bytes, const PlanOptions& options);
// Counts one slot for the unit that computes, one for the previous unit, which may still be read, and one per
// prefetched unit.
int gather_slots(int units, int64_t unit_bytes, const PlanOptions& options);
// Counts one slot that is filled while the other is reduced; small groups have more, for the same reason as above.
int reduce_slots(int units, int64_t bytes);

// Returns the bytes of a group's gradients when they are packed for the reduction, including padding; 0 for a frozen
// group. Each group of a unit is reduced on its own, so each takes a slot.
int64_t wire_bytes(const FlatGroup& group, const GroupPlacement& place);

using PlacementTable = std::span<const UnitPlacement>;
// The size classes of the rings, smallest first. Each persistent unit has its own full buffer, which is in the same
// category, but in no class.
std::vector<RingClass> gather_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
std::vector<RingClass> reduce_ring(std::span<const UnitLayout> units, PlacementTable table);
// Returns the memory in which pieces of the peers' gradients arrive: the largest group's wire bytes, twice if
// reductions overlap. Every stage needs it to exchange gradients. 0 if the transport needs none or there are no peers.
RingClass exchange_scratch(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// Returns the elements of memory for a sum of `numel` elements over replicas, which cut it into equal pieces. Pieces of
// 8-bit codes are whole blocks.
int64_t replica_sum_numel(int64_t numel, int replicas, bool is_coded);
// Returns the bytes of `numel` elements between replicas: fp32, or codes and a scale for each block of kScaledNumel.
int64_t replica_sum_bytes(int64_t numel, bool is_coded);
// Returns the memory in which the replicas of a shard add their gradients: fp32 for the largest shard of a group and,
// if it is coded, its codes; what is sent again if the transport copies pieces; and all of it twice if reductions
// overlap. 0 if there is one replica.
RingClass replica_buffers(std::span<const UnitLayout> units, const PlanOptions& options);

// Returns the device buffers in which reduced gradients are summed before they go to the host. Each is as large as the
// largest group's gradients. The next buffer is filled while one is copied. `units` are the groups whose gradients go.
RingClass gradient_exit(std::span<const UnitLayout> units, PlacementTable table);

// The number of elements of parameters that are copied at a time to the host, where their optimizer states are, and
// back.
inline constexpr int64_t kCopiedNumel = 1 << 22;
// Returns the host buffers through which 16-bit parameters pass: one is filled, one is in use, one is sent back.
RingClass parameter_copies(std::span<const UnitLayout> units, PlacementTable table);
// Returns the host bytes of new parameters that wait for the end of the next step (PlacementOptions::delayed_update).
int64_t pending_parameters(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);
// Returns the device buffers through which offloaded parameters pass if the device updates them: one is filled while
// the other is sent.
RingClass shard_copies(std::span<const UnitLayout> units, PlacementTable table);

// The number of elements of reduced gradients that are copied at a time from the device to the host, which updates.
inline constexpr int64_t kFetchedNumel = 1 << 20;
// Returns the host buffers for these gradients: one is in use while the next is filled.
RingClass gradient_fetch(std::span<const UnitLayout> units, PlacementTable table);

// Returns the host bytes of the copy for asynchronous saves, which is held from the first such save on. It contains the
// data that a rank saves at every stage: its shard of the weights (fp32 if they are trained) and of the optimizer's
// states. Nothing in files is copied. If the states are in files, fp32 parameters are copied only if they are kept
// whole, because users may write to those. Buffers of the model are not counted.
int64_t checkpoint_staging_bytes(std::span<const UnitLayout> units, const PlanOptions& options);

// Throws ValueError for options that no run can have.
void check_plan_options(const PlanOptions& options);

}  // namespace zeroshard

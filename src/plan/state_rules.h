#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "layout/unit_layout.h"
#include "zeroshard/plan.h"

// The one place that says how many bytes the runtime holds for what. The engine sizes its buffers by these functions
// and the planner sums them, so the two cannot drift apart.
namespace zeroshard {

// Bytes per element: of the group's full (padded) buffer, and of one rank's shard of it. They add up.
struct PerElement {
  int64_t full = 0, shard = 0;

  int64_t bytes(const ShardLayout& layout) const { return full * layout.padded_numel() + shard * layout.shard_numel(); }
  int64_t total() const { return full + shard; }
  bool operator==(const PerElement&) const = default;
};

// `dtype` is that of the parameters: the compute dtype, for all that the engine has cast.
DType wire_dtype(DType dtype, const PlanOptions& options);
DType grad_dtype(DType dtype, const PlanOptions& options);

// fp32 parameters are their own master weights.
inline bool has_master_weights(DType dtype) {
  return dtype != DType::kFloat32;
}
// Stage 3 keeps shards of the parameters; a world of one has nothing to shard and keeps them full.
inline bool shards_parameters(const PlanOptions& options) {
  return options.stage == 3 && options.world_size > 1;
}
// Stages 2 and 3 keep shards of the gradients, and pass them through the reduce ring; a world of one has no shards.
inline bool shards_gradients(const PlanOptions& options) {
  return options.stage >= 2 && options.world_size > 1;
}

// Held for the whole run. The last three are for trainable parameters only.
PerElement parameter_bytes(DType dtype, const PlanOptions& options);
PerElement gradient_bytes(DType dtype, const PlanOptions& options);
PerElement master_weight_bytes(DType dtype, const PlanOptions& options);
PerElement moment_bytes(const PlanOptions& options);

// Slots of one size that units of that size share.
struct RingClass {
  int64_t slot_bytes = 0;
  int slots = 0;
  int units = 0;

  int64_t bytes() const { return slot_bytes * slots; }
  bool operator==(const RingClass&) const = default;
};

// Persistent units stay unsharded: each has a full buffer of its own, outside the classes but in the same category.
bool is_persistent(const UnitLayout& unit, const PlanOptions& options);
// How many units of `unit_bytes` are gathered ahead: one, and more of small units, so that ranks need not wait for one
// another at each.
int prefetch_depth(int64_t unit_bytes, const PlanOptions& options);
// One slot for the unit that computes, one for the unit before it that may still be read, one per unit prefetched.
int gather_slots(int units, int64_t unit_bytes, const PlanOptions& options);
// One slot that fills while the other is reduced; more small ones, as above.
int reduce_slots(int units, int64_t bytes);

// Bytes of a group's gradients as they are packed for the reduction, padding included; 0 for a frozen group. Groups of
// a unit are reduced on their own, so each takes a slot.
int64_t wire_bytes(const FlatGroup& group, const PlanOptions& options);

// Size classes, smallest first. Empty at stages that have no such ring.
std::vector<RingClass> gather_ring(std::span<const UnitLayout> units, const PlanOptions& options);
std::vector<RingClass> reduce_ring(std::span<const UnitLayout> units, const PlanOptions& options);
// Where pieces of the peers' gradients arrive: the largest group's wire bytes, twice when reductions overlap. Every
// stage exchanges, so every stage has it; 0 when the transport needs none or there are no peers.
int64_t exchange_scratch_bytes(std::span<const UnitLayout> units, const PlanOptions& options);

// Held on the host from the first asynchronous save on: a copy of what a rank saves, which is its shard of the weights
// (fp32 where they are trained) and of the optimizer's states, at every stage. Buffers of the model are not counted.
int64_t checkpoint_staging_bytes(std::span<const UnitLayout> units, const PlanOptions& options);

// Throws ValueError for options that no run can have.
void check_plan_options(const PlanOptions& options);

}  // namespace zeroshard

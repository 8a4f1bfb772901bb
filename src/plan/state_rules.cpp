#include "plan/state_rules.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace zeroshard {
namespace {

constexpr int64_t kMasterBytes = 4;  // master weights and moments are fp32
constexpr int64_t kMomentBytes = 4;

// Optimizer states are sharded from stage 1 on.
PerElement optimizer_state(int64_t bytes, const PlanOptions& options) {
  return options.stage >= 1 ? PerElement{0, bytes} : PerElement{bytes, 0};
}

std::vector<RingClass> ring_of(const std::map<int64_t, int>& units_by_size, const auto& slots_for) {
  std::vector<RingClass> ring;
  for (const auto& [bytes, units] : units_by_size) ring.push_back({bytes, slots_for(units, bytes), units});
  return ring;
}

// Of small slots there are as many as fit into 8 MiB, up to 8. Eight ranks on two cores trained a model of 64 units of
// 0.8 MB in 155 ms of processor time a step and rank with them, and in 180 with the least number.
int slots_of_size(int least, int64_t bytes) {
  constexpr int64_t kRingBytes = int64_t{8} << 20;
  constexpr int kMost = 8;
  return std::max(least, int(std::min<int64_t>(kMost, kRingBytes / std::max<int64_t>(bytes, 1))));
}

}  // namespace

DType wire_dtype(DType dtype, const PlanOptions& options) {
  return options.wire_dtype.value_or(dtype);
}

DType grad_dtype(DType dtype, const PlanOptions& options) {
  if (options.grad_dtype) return *options.grad_dtype;
  return options.grad_accumulation_steps > 1 ? DType::kFloat32 : wire_dtype(dtype, options);
}

PerElement parameter_bytes(DType dtype, const PlanOptions& options) {
  const int64_t bytes = element_size(dtype);
  return shards_parameters(options) ? PerElement{0, bytes} : PerElement{bytes, 0};
}

// Stages 0 and 1, and a world of one, keep every gradient as it goes on the wire and reduce in place: into this rank's
// slice, gathered back to full at stage 0. Reduced gradients need memory of their own when they have another dtype, or
// when later micro-batches would overwrite them.
PerElement gradient_bytes(DType dtype, const PlanOptions& options) {
  const DType wire = wire_dtype(dtype, options), reduced = grad_dtype(dtype, options);
  if (shards_gradients(options)) return {0, element_size(reduced)};
  PerElement bytes{element_size(wire), 0};
  const bool in_place = reduced == wire && options.grad_accumulation_steps == 1;
  if (!in_place) (options.stage == 0 ? bytes.full : bytes.shard) += element_size(reduced);
  return bytes;
}

PerElement master_weight_bytes(DType dtype, const PlanOptions& options) {
  return has_master_weights(dtype) ? optimizer_state(kMasterBytes, options) : PerElement{};
}

PerElement moment_bytes(const PlanOptions& options) {
  return optimizer_state(kMomentBytes * options.optimizer_slots, options);
}

bool is_persistent(const UnitLayout& unit, const PlanOptions& options) {
  return shards_parameters(options) && unit.numel() <= options.persistence_threshold;
}

int prefetch_depth(int64_t unit_bytes, const PlanOptions& options) {
  return options.prefetch ? slots_of_size(3, unit_bytes) - 2 : 0;
}

int gather_slots(int units, int64_t unit_bytes, const PlanOptions& options) {
  return std::min(units, prefetch_depth(unit_bytes, options) + 2);
}

int reduce_slots(int units, int64_t bytes) {
  return std::min(units, slots_of_size(2, bytes));
}

int64_t wire_bytes(const FlatGroup& group, const PlanOptions& options) {
  return group.requires_grad ? group.layout.padded_numel() * element_size(wire_dtype(group.dtype, options)) : 0;
}

std::vector<RingClass> gather_ring(std::span<const UnitLayout> units, const PlanOptions& options) {
  std::map<int64_t, int> units_by_size;
  if (shards_parameters(options)) {
    for (const UnitLayout& unit : units) {
      if (!is_persistent(unit, options) && unit.full_bytes() > 0) ++units_by_size[unit.full_bytes()];
    }
  }
  return ring_of(units_by_size, [&](int count, int64_t bytes) { return gather_slots(count, bytes, options); });
}

std::vector<RingClass> reduce_ring(std::span<const UnitLayout> units, const PlanOptions& options) {
  std::map<int64_t, int> units_by_size;
  if (shards_gradients(options)) {
    for (const UnitLayout& unit : units) {
      for (const FlatGroup& group : unit.groups) {
        if (const int64_t bytes = wire_bytes(group, options); bytes > 0) ++units_by_size[bytes];
      }
    }
  }
  return ring_of(units_by_size, reduce_slots);
}

int64_t exchange_scratch_bytes(std::span<const UnitLayout> units, const PlanOptions& options) {
  if (!options.exchange_needs_scratch || options.world_size == 1) return 0;
  int64_t largest = 0;
  for (const UnitLayout& unit : units) {
    for (const FlatGroup& group : unit.groups) largest = std::max(largest, wire_bytes(group, options));
  }
  return largest * (options.overlap ? 2 : 1);
}

int64_t checkpoint_staging_bytes(std::span<const UnitLayout> units, const PlanOptions& options) {
  int64_t bytes = 0;
  for (const UnitLayout& unit : units) {
    for (const FlatGroup& group : unit.groups) {
      const int64_t trained = element_size(DType::kFloat32) * (1 + options.optimizer_slots);
      bytes += group.layout.shard_numel() * (group.requires_grad ? trained : element_size(group.dtype));
    }
  }
  return bytes;
}

void check_plan_options(const PlanOptions& options) {
  ZS_CHECK(options.world_size >= 1 && options.world_size <= kMaxPlannedWorldSize, "world_size must be 1 to ",
           kMaxPlannedWorldSize, ", got ", options.world_size);
  ZS_CHECK(options.stage >= 0 && options.stage <= 3, "stage must be 0, 1, 2 or 3, got ", options.stage);
  ZS_CHECK(options.optimizer_slots >= 0, "optimizer_slots must not be negative, got ", options.optimizer_slots);
  ZS_CHECK(options.grad_accumulation_steps >= 1, "grad_accumulation_steps must be positive, got ",
           options.grad_accumulation_steps);
  ZS_CHECK(is_floating_point(options.compute_dtype), "compute_dtype must be floating-point, got ",
           name_of(options.compute_dtype));
}

}  // namespace zeroshard

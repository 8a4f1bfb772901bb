#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/buffer_sizes.h"
#include "zeroshard/plan.h"

namespace zeroshard {

// The planned ledger of a run, its placements, and the sizes of its rings.
struct PlanReport {
  Bytes bytes;                            // what the run's ledger holds between steps, and the peak of kTemporaries
  std::vector<UnitPlacement> placements;  // one for each unit
  std::vector<RingClass> gather_ring, reduce_ring;
  int64_t persistent_bytes = 0;                // full buffers of persistent units, counted in kGatherRing
  RingClass shard_copies, refresh_codes;       // counted in kGatherRing
  RingClass matrix_ring;                       // counted in kReduceRing
  RingClass gradient_exit;                     // counted in kReduceRing, together with the squares of each bucket
  RingClass parameter_copies, gradient_fetch;  // counted in kPinned
  int64_t pending_parameters = 0;              // counted in kPinned
};

// Plans the bytes that the runtime has for these units. The layouts must have been made for options.world_size and
// options.parts, or the function throws ValueError. The plan uses the dtypes of the layouts and ignores
// options.compute_dtype. Also throws the errors of check_plan_options() and place().
PlanReport plan_ledger(std::span<const UnitLayout> units, const PlanOptions& options);

// Returns the layouts that the engine would make for the model's units if all parameters are trainable and in the
// compute dtype.
std::vector<UnitLayout> make_unit_layouts(const ModelShapes& model, const PlanOptions& options);

}  // namespace zeroshard

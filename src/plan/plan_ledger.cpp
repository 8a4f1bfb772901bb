#include "plan/plan_ledger.h"

#include <algorithm>

#include "base/check.h"
#include "file/record_store.h"
#include "layout/matrix_owners.h"
#include "plan/device_memory.h"
#include "plan/matrix_plan.h"
#include "plan/swap_plan.h"

namespace zeroshard {
namespace {

int64_t sum_of(std::span<const RingClass> ring) {
  int64_t sum = 0;
  for (const RingClass& size_class : ring) sum += size_class.bytes();
  return sum;
}

void add_group(Bytes& bytes, const FlatGroup& group, const GroupPlacement& place) {
  const auto add = [&](Category category, const Stored& held) {
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kFile})
      bytes.at(category, tier) += held.bytes_on(tier, group.layout);
  };
  add(Category::kParameters, place.parameters);
  add(Category::kGradients, place.packed_gradients);
  add(Category::kGradients, place.reduced_gradients);
  add(Category::kMasterWeights, place.master_weights);
  add(Category::kMoments, place.moments);
}

}  // namespace

PlanReport plan_ledger(std::span<const UnitLayout> units, const PlanOptions& options) {
  check_plan_options(options);
  PlanReport report;
  report.placements = place(units, options);
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitLayout& unit = units[u];
    for (size_t g = 0; g < unit.groups.size(); ++g) {
      const FlatGroup& group = unit.groups[g];
      ZS_CHECK(group.layout.world_size() == options.world_size, "unit '", unit.name, "' is laid out for ",
               group.layout.world_size(), " ranks, the plan is for ", options.world_size);
      ZS_CHECK(group.layout.parts() == options.parts, "unit '", unit.name, "' is laid out for ", group.layout.parts(),
               " part(s) of a shard, the plan is for ", options.parts);
      add_group(report.bytes, group, report.placements[u].groups[g]);
    }
    if (report.placements[u].parameters == Placement::kPersistent) report.persistent_bytes += unit.full_bytes();
  }
  report.gather_ring = gather_ring(units, report.placements, options);
  report.reduce_ring = reduce_ring(units, report.placements);
  report.shard_copies = shard_copies(units, report.placements);
  report.refresh_codes = refresh_codes(units, report.placements, options);
  report.bytes.at(Category::kGatherRing, Tier::kDevice) =
      sum_of(report.gather_ring) + report.persistent_bytes + report.shard_copies.bytes() + report.refresh_codes.bytes();
  report.matrix_ring = matrix_ring(units, report.placements, options);
  report.bytes.at(Category::kReduceRing, Tier::kDevice) =
      sum_of(report.reduce_ring) + exchange_scratch(units, report.placements, options).bytes() +
      replica_buffers(units, options).bytes() + report.matrix_ring.bytes();
  report.gradient_exit = gradient_exit(units, report.placements);
  report.parameter_copies = parameter_copies(units, report.placements);
  report.bytes.at(Category::kReduceRing, Tier::kDevice) +=
      report.gradient_exit.bytes() + report.gradient_exit.units * kSquaresBytes;
  report.gradient_fetch = gradient_fetch(units, report.placements);
  report.pending_parameters = pending_parameters(units, report.placements, options);
  report.bytes.at(Category::kPinned, Tier::kHost) =
      report.parameter_copies.bytes() + report.gradient_fetch.bytes() + report.pending_parameters;
  report.bytes.at(Category::kSwap, host_tier(options.on_device)) =
      swap_memory_bytes(groups_in_file(units, report.placements), options.swap_buffers) +
      swap_memory_bytes(gradients_in_file(units, report.placements), options.swap_buffers) +
      (options.activations_in_files ? kRecordStagingBytes : 0) +
      swap_memory_bytes(parameters_in_file(units, report.placements),
                        parameter_chunks(units, report.placements, options));
  if (options.on_device)
    report.bytes.at(Category::kTemporaries, Tier::kDevice) = std::max(
        {step_temporaries(units), matrix_temporaries(units, options), coded_temporaries(units, report.placements)});
  return report;
}

std::vector<UnitLayout> make_unit_layouts(const ModelShapes& model, const PlanOptions& options) {
  std::vector<UnitLayout> layouts;
  layouts.reserve(model.units.size());
  for (const UnitShapes& unit : model.units) {
    std::vector<ParamSpec> params;
    for (const ParamShape& param : unit.params) {
      const bool is_matrix = options.matrix_dtype && is_hidden_matrix(param.names, param.shape);
      params.push_back({param.names, param.shape, options.compute_dtype, /*requires_grad=*/true, is_matrix,
                        has_coded_moments(param.numel(), options.moment_dtype)});
    }
    layouts.push_back(make_unit_layout(unit.name, std::move(params), options.world_size, options.parts));
  }
  return layouts;
}

}  // namespace zeroshard

#include "zeroshard/plan.h"

#include <algorithm>

#include "base/check.h"
#include "placement/offload_rules.h"
#include "placement/placement.h"
#include "plan/buffer_sizes.h"
#include "plan/device_memory.h"
#include "plan/plan_ledger.h"
#include "plan/smallest_world_size.h"

namespace zeroshard {
namespace {

// Returns the bytes of `held` without padding. Only the division by the number of ranks rounds, because kScaledNumel is
// a power of two. So the result is correctly rounded, and exact if a double can hold it.
double ideal_bytes(const Stored& held, int64_t numel, const PlanOptions& options) {
  const double whole = double(held.block_bytes()) * double(numel) / double(kScaledNumel);
  if (held.extent == Extent::kPart) return whole / double(state_ranks(options));
  return held.extent == Extent::kShard ? whole / double(options.world_size) : whole;
}

}  // namespace

int optimizer_slots(const OptimizerConfig& config) {
  switch (config.type) {
    case OptimizerConfig::Type::kAdam:
    case OptimizerConfig::Type::kAdamW:
      return 2;
    case OptimizerConfig::Type::kLion:
    case OptimizerConfig::Type::kAdagrad:
      return 1;
    case OptimizerConfig::Type::kSgd:
      return config.momentum != 0 ? 1 : 0;
    case OptimizerConfig::Type::kMuon:
      return 2;  // AdamW, which updates parameters that are not matrices, needs 2
  }
  return 0;
}

bool asks_for_files(const Config& config) {
  return config.offload_optimizer.device == OffloadDevice::kNvme ||
         config.offload_param.device == OffloadDevice::kNvme ||
         config.offload.activations == OffloadConfig::Activations::kNvme;
}

bool is_for_device(const Config& config) {
  const bool takes = refused_offload(config, /*on_device=*/true).empty();
  if (takes != refused_offload(config, /*on_device=*/false).empty()) return takes;
  return !asks_for_files(config);
}

PlanOptions plan_options(const Config& config, bool on_device) {
  using Device = OffloadOptimizerConfig::Device;
  PlanOptions options;
  options.on_device = on_device;
  options.state_share = config.offload_optimizer.ratio;
  const Device offload = options.state_share > 0 ? config.offload_optimizer.device : Device::kNone;
  const Tier beside = host_tier(on_device);
  if (offload == Device::kCpu) options.state_tier = beside;
  if (offload == Device::kNvme) options.state_tier = Tier::kFile;
  options.gradients = config.offload.gradients;
  options.gradient_tier = tier_of_gradients(options);
  if (config.offload_param.device == OffloadParamConfig::Device::kCpu) options.parameter_tier = beside;
  if (config.offload_param.device == OffloadParamConfig::Device::kNvme) options.parameter_tier = Tier::kFile;
  options.parameters_in_memory = config.offload_param.max_in_memory;
  options.parameter_buffers = config.offload_param.buffer_count;
  options.parameter_buffer_numel = config.offload_param.buffer_numel;
  options.swap_buffers = config.offload_optimizer.buffer_count;
  options.activations_in_files = config.offload.activations == OffloadConfig::Activations::kNvme;
  options.world_size = config.shard_ranks();
  options.replicas = config.world_size / config.shard_ranks();
  options.parts = config.shares_states() ? options.replicas : 1;
  options.quantized_gradients = config.quantized_gradients;
  options.sums_natively = config.reduction == Config::Reduction::kNative;
  options.in_two_levels = config.transport == Config::Transport::kAuto;
  options.quantized_weights = config.quantized_weights;
  options.stage = config.stage;
  options.compute_dtype = config.compute_dtype;
  options.wire_dtype = config.communication_dtype;
  options.grad_dtype = config.grad_accum_dtype;
  options.optimizer_slots = optimizer_slots(config.optimizer.value_or(OptimizerConfig{}));
  if (config.optimizer && config.optimizer->type == OptimizerConfig::Type::kMuon)
    options.matrix_dtype = config.optimizer->ns_gram ? DType::kFloat32 : DType::kBFloat16;
  options.moment_dtype = config.moment_dtype;
  options.delayed_update = config.offload.delayed_update && on_device;
  // If managed_accumulation is false, the caller ends steps, so a step can have several micro-batches.
  options.grad_accumulation_steps =
      std::max<int64_t>(config.grad_accumulation_steps, config.managed_accumulation ? 1 : 2);
  options.overlap = config.overlap_comm;
  options.prefetch = config.prefetch_numel > 0;
  options.persistence_threshold = config.persistence_threshold;
  options.rules = config.placement;
  options.shard_one_rank = config.shard_one_rank;
  return options;
}

Tier tier_of_gradients(const PlanOptions& options) {
  using Gradients = OffloadConfig::Gradients;
  if (options.state_tier == Tier::kDevice || options.state_share == 0) return Tier::kDevice;
  const bool to_files = options.gradients == Gradients::kNvme && options.state_tier == Tier::kFile;
  if (!options.on_device) return to_files ? Tier::kFile : Tier::kDevice;
  if (options.state_share < 1 || options.gradients == Gradients::kDevice) return Tier::kDevice;
  return to_files ? Tier::kFile : Tier::kHost;
}

PlannedBytes plan_count(int64_t num_params, const PlanOptions& options) {
  check_plan_options(options);
  ZS_CHECK(num_params >= 1 && num_params <= kMaxParams, "the number of parameters must be 1 to ", kMaxParams, ", got ",
           num_params);
  const auto bytes = [&](const Stored& held) { return ideal_bytes(held, num_params, options); };
  const Placement parameters = shards_parameters(options) ? Placement::kSharded : Placement::kReplicated;
  const GroupPlacement place = place_group(options.compute_dtype, /*requires_grad=*/true, parameters, options);
  PlannedBytes planned;
  const auto add = [&](const Stored& held, double& device, double PlannedTier::*elsewhere) {
    Stored codes = held;
    codes.scales.reset();
    const double all = bytes(codes), away = held.tier == Tier::kDevice ? 0 : held.share * all;
    if (held.has_rest) device += all - away;
    (held.scales == Tier::kHost ? planned.host.*elsewhere : device) += bytes(held) - all;
    PlannedTier& there = held.tier == Tier::kFile ? planned.file : planned.host;
    there.*elsewhere += away;
  };
  add(place.parameters, planned.parameters, &PlannedTier::parameters);
  if (place.parameters.tier == Tier::kFile) {
    const double stay = double(options.parameters_in_memory) * double(place.parameters.element_bytes());
    const double kept = std::min(stay, planned.file.parameters);
    (options.on_device ? planned.host.parameters : planned.parameters) += kept;
    planned.file.parameters -= kept;
  }
  add(place.packed_gradients, planned.gradients, &PlannedTier::gradients);
  add(place.reduced_gradients, planned.gradients, &PlannedTier::gradients);
  add(place.master_weights, planned.master_weights, &PlannedTier::master_weights);
  add(place.moments, planned.moments, &PlannedTier::moments);
  return planned;
}

namespace {

PlannedTier planned_tier(const Bytes& bytes, Tier tier) {
  const auto held = [&](Category category) { return double(bytes.at(category, tier)); };
  return {.parameters = held(Category::kParameters),
          .gradients = held(Category::kGradients),
          .master_weights = held(Category::kMasterWeights),
          .moments = held(Category::kMoments),
          .buffers = held(Category::kPinned) + held(Category::kSwap)};
}

}  // namespace

PlannedBytes plan_model(const ModelShapes& model, const PlanOptions& options) {
  check_plan_options(options);
  const std::vector<UnitLayout> units = make_unit_layouts(model, options);
  const PlanReport report = plan_ledger(units, options);
  const auto held = [&](Category category) { return double(report.bytes.at(category, Tier::kDevice)); };
  std::vector<UnitOrigin> origins;
  for (const UnitLayout& unit : units) origins.push_back(origin_on_device(unit));
  return {.parameters = held(Category::kParameters),
          .gradients = held(Category::kGradients),
          .master_weights = held(Category::kMasterWeights),
          .moments = held(Category::kMoments),
          .gather_ring = held(Category::kGatherRing),
          .reduce_ring = held(Category::kReduceRing),
          .swap = held(Category::kSwap),
          .host = planned_tier(report.bytes, Tier::kHost),
          .file = planned_tier(report.bytes, Tier::kFile),
          .temporaries = std::max(double(step_temporaries(units)), held(Category::kTemporaries)),
          .init_peak = double(init_peak(units, report, origins))};
}

namespace {

std::string describe(std::string_view extent, const Stored& held) {
  const std::string what = concat(extent, " ", held.values > 1 ? concat(held.values, " x ") : "", name_of(held.dtype));
  if (held.tier == Tier::kDevice) return what;
  return concat(what, held.share < 1 ? concat(", ", held.share, " of it") : "", " on ", name_of(held.tier));
}

std::string describe(const Stored& held) {
  return held.extent == Extent::kNothing ? "-" : describe(name_of(held.extent), held);
}

// Adds the description of a group to that of its unit, unless it is "-" or already there.
void add_description(const std::string& of_group, std::string& of_unit) {
  if (of_unit == "-") {
    of_unit = of_group;
  } else if (of_group != "-" && concat("; ", of_unit, ";").find(concat("; ", of_group, ";")) == std::string::npos) {
    of_unit += concat("; ", of_group);
  }
}

void describe(Placement parameters, const GroupPlacement& place, PlannedUnit& planned) {
  add_description(describe(name_of(parameters), place.parameters), planned.parameters);
  const bool in_place = place.reduced_gradients.extent == Extent::kNothing;
  add_description(describe(in_place ? place.packed_gradients : place.reduced_gradients), planned.gradients);
  add_description(describe(place.master_weights), planned.master_weights);
  add_description(describe(place.moments), planned.moments);
}

PlannedUnit describe(const UnitLayout& unit, const UnitPlacement& placement) {
  PlannedUnit planned{unit.name, unit.numel(), "-", "-", "-", "-"};
  for (size_t g = 0; g < unit.groups.size(); ++g) {
    const GroupPlacement& place = placement.groups[g];
    describe(placement.parameters, place, planned);
    for (const Stored* held :
         {&place.parameters, &place.packed_gradients, &place.reduced_gradients, &place.master_weights, &place.moments})
      planned.bytes += double(held->bytes(unit.groups[g].layout));
  }
  return planned;
}

}  // namespace

std::vector<PlannedUnit> plan_units(const ModelShapes& model, const PlanOptions& options) {
  check_plan_options(options);
  const std::vector<UnitLayout> units = make_unit_layouts(model, options);
  const std::vector<UnitPlacement> table = place(units, options);
  std::vector<PlannedUnit> planned;
  for (size_t u = 0; u < units.size(); ++u) planned.push_back(describe(units[u], table[u]));
  return planned;
}

std::vector<PlannedUnit> plan_kinds_of_units(const PlanOptions& options) {
  check_plan_options(options);
  std::vector<PlannedUnit> kinds;
  const auto add = [&](std::string name, Placement parameters) {
    kinds.push_back({std::move(name), 0, "-", "-", "-", "-"});
    const GroupPlacement place = place_group(options.compute_dtype, /*requires_grad=*/true, parameters, options);
    describe(parameters, place, kinds.back());
  };
  if (!shards_parameters(options)) {
    add("all units", Placement::kReplicated);
    return kinds;
  }
  bool are_others = true;
  for (const PlacementRule& rule : options.rules) {
    add(rule.units, rule.replicated ? Placement::kReplicated : Placement::kSharded);
    are_others = are_others && rule.units != "*";
  }
  if (are_others && options.persistence_threshold > 0)
    add(concat("others up to ", options.persistence_threshold, " elements"), Placement::kPersistent);
  if (are_others) add(kinds.empty() ? "all units" : "all others", Placement::kSharded);
  return kinds;
}

double init_extra_bytes(const ModelShapes& model, const PlanOptions& options) {
  check_plan_options(options);
  int64_t largest = 0;
  for (const UnitLayout& unit : make_unit_layouts(model, options)) largest = std::max(largest, init_staging(unit));
  return double(largest);
}

double checkpoint_staging_bytes(const ModelShapes& model, const PlanOptions& options) {
  check_plan_options(options);
  const std::vector<UnitLayout> units = make_unit_layouts(model, options);
  return double(checkpoint_staging_bytes(std::span<const UnitLayout>(units), options));
}

double checkpoint_staging_bytes(double numel, const PlanOptions& options) {
  check_plan_options(options);
  const double saved = numel / options.world_size / options.replicas;  // each replica saves its part
  const double weights = saved * double(element_size(DType::kFloat32));
  if (options.state_tier != Tier::kFile) return weights * (1 + options.optimizer_slots);
  return options.compute_dtype == DType::kFloat32 && !shards_parameters(options) ? weights : 0;
}

int64_t ParamShape::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

int64_t ModelShapes::numel() const {
  int64_t sum = 0;
  for (const UnitShapes& unit : units) {
    for (const ParamShape& param : unit.params) sum += param.numel();
  }
  return sum;
}

FitReport check_fit(double device_bytes, const PlanOptions& options,
                    const std::function<double(const PlanOptions&)>& bytes_per_rank) {
  ZS_CHECK(device_bytes > 0, "the device memory must be positive, got ", device_bytes);
  const auto needed = [&](int world_size, int stage) {
    PlanOptions other = options;
    other.world_size = world_size;
    other.stage = stage;
    return bytes_per_rank(other);
  };
  FitReport report;
  const double here = bytes_per_rank(options);
  report.fits = here <= device_bytes;
  report.ratio = here / device_bytes;
  for (int stage = 0; stage <= 3 && !report.lowest_stage; ++stage) {
    if (needed(options.world_size, stage) <= device_bytes) report.lowest_stage = stage;
  }
  const auto search = [&](int stage) {
    return smallest_world_size(/*above=*/0, [&](int world_size) { return needed(world_size, stage) <= device_bytes; });
  };
  report.min_world_size = search(options.stage);
  report.min_world_size_stage_3 = options.stage == 3 ? report.min_world_size : search(3);
  return report;
}

}  // namespace zeroshard

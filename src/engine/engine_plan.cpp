#include "engine/engine_plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/shape_text.h"
#include "device/current_device.h"
#include "device/dtype.h"
#include "device/safetensors_dtype.h"
#include "engine/agreement.h"
#include "engine/check_matrices.h"
#include "engine/check_memory.h"
#include "engine/check_offload.h"
#include "engine/host_threads.h"
#include "engine/memory_needs.h"
#include "layout/matrix_owners.h"
#include "plan/device_memory.h"
#include "precision/loss_scaler.h"

namespace zeroshard {
namespace {

PlanOptions plan_options(const Config& config, c10::Device device, const Ranks& ranks, int num_moments) {
  const Comm& comm = ranks.reduce;
  PlanOptions plan = zeroshard::plan_options(config, /*on_device=*/!device.is_cpu());
  plan.world_size = comm.world_size();
  plan.parts = ranks.num_parts();
  plan.replicas = ranks.num_replicas();
  plan.replicas_need_scratch = ranks.replicas != nullptr && ranks.replicas->exchange_needs_scratch();
  plan.optimizer_slots = num_moments;
  plan.exchange_needs_scratch = comm.exchange_needs_scratch() && config.reduction == Config::Reduction::kCanonical;
  return plan;
}

DType compute_dtype(const ParamDefinition& param, const Config& config) {
  const DType own = to_dtype(param.dtype);
  const bool cast = !param.packed && config.compute_dtype != DType::kFloat32 && is_floating_point(own);
  return cast ? config.compute_dtype : own;
}

void check_can_be_saved(const ParamDefinition& param) {
  try {
    safetensors_dtype(param.dtype);
  } catch (const ValueError& error) {
    throw ValueError(concat("parameter '", param.names.front(), "': ", error.what()));
  }
}

bool is_matrix(const ParamDefinition& param, const EngineOptions& options) {
  if (options.optimizer != OptimizerConfig::Type::kMuon || !options.external_optimizer.empty()) return false;
  return param.requires_grad && param.param_group >= 0 && options.param_groups.at(size_t(param.param_group)).use_muon;
}

std::vector<UnitLayout> make_layouts(const std::vector<UnitDefinition>& units, const EngineOptions& options,
                                     const Ranks& ranks) {
  std::vector<UnitLayout> layouts;
  for (const UnitDefinition& unit : units) {
    std::vector<ParamSpec> params;
    for (const ParamDefinition& param : unit.params) {
      check_can_be_saved(param);
      const bool trains = param.requires_grad && param.param_group >= 0;
      params.push_back(
          {param.names, param.shape, compute_dtype(param, options.config), trains, is_matrix(param, options)});
      params.back().is_coded =
          !param.keeps_fp32_moments && has_coded_moments(params.back().numel(), options.config.moment_dtype);
    }
    layouts.push_back(make_unit_layout(unit.name, std::move(params), ranks.gather.world_size(), ranks.num_parts()));
  }
  return layouts;
}

NamedValues describe(const std::vector<UnitLayout>& layouts) {
  NamedValues values;
  for (const UnitLayout& unit : layouts) {
    for (const ParamSpec& param : unit.params) {
      values.emplace_back(
          param.name(), concat(shape_text(param.shape), " ", name_of(param.dtype), param.requires_grad ? "" : " frozen",
                               param.is_matrix ? " matrix" : "", param.is_coded ? " with 8-bit moments" : ""));
    }
  }
  return values;
}

NamedValues describe(const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  NamedValues values;
  for (const auto& [name, buffer] : buffers)
    values.emplace_back(name, concat(shape_text(buffer.sizes()), " ", c10::toString(buffer.scalar_type())));
  return values;
}

}  // namespace

EngineOptions completed(EngineOptions options, std::vector<UnitDefinition>& units) {
  options.device = with_index(options.device);
  if (!options.param_groups.empty()) return options;
  const std::optional<OptimizerConfig>& optimizer = options.config.optimizer;
  if (optimizer) options.optimizer = optimizer->type;
  if (options.optimizer != OptimizerConfig::Type::kMuon || !optimizer) {
    options.param_groups.push_back(optimizer.value_or(OptimizerConfig{}));
    return options;
  }
  options.param_groups = {optimizer->of_others(), optimizer->of_matrices()};
  for (UnitDefinition& unit : units)
    for (ParamDefinition& param : unit.params)
      if (param.param_group == 0 && is_hidden_matrix(param.names, param.shape)) param.param_group = 1;
  return options;
}

EnginePlan::EnginePlan(const std::vector<UnitDefinition>& units, EngineOptions& engine_options, Ranks& ranks) {
  const Config& config = engine_options.config;
  ZS_CHECK(!units.empty(), "the model has no parameters");
  layouts = make_layouts(units, engine_options, ranks);
  for (const auto& [what, values] : engine_options.agreement) check_agreement(ranks.all, what, values);
  check_agreement(ranks.all, "parameters of the model", describe(layouts));
  check_agreement(ranks.all, "buffers of the model", describe(engine_options.buffers));
  static_cast<void>(LossScaler(config.fp16));  // throws for bad settings now, while the model still has its values
  check_matrices(layouts, engine_options);
  double momentum = 0;
  for (const ParamGroupOptions& group : engine_options.param_groups) momentum = std::max(momentum, group.momentum);
  const int moments =
      !engine_options.external_optimizer.empty() ? 0 : num_moments(engine_options.optimizer, momentum != 0);
  const RankLimits limits = read_limits(engine_options, ranks.all);
  const auto plan_of = [&](const Config& of) {
    PlanOptions made = plan_options(of, engine_options.device, ranks, moments);
    made.masters_in_memory =
        !engine_options.external_optimizer.empty();  // because that optimizer has tensors in their memory
    made.matrix_dtype = matrix_dtype(engine_options);
    return made;
  };
  const std::optional<OptimizerConfig> configured = config.optimizer;
  if (!config.optimizer) engine_options.config.optimizer.emplace();
  engine_options.config.optimizer->type =
      engine_options.optimizer;  // the rules of offload depend on the optimizer that runs
  engine_options.config.optimizer->momentum = momentum;
  engine_options.config = resolve_offload(engine_options, layouts, limits, plan_of, ranks.all);
  check_offload(config, engine_options.device, engine_options.external_optimizer);
  engine_options.config.optimizer = configured;
  options = plan_of(config);
  static_cast<PlanReport&>(*this) = plan_ledger(layouts, options);
  if (ranks.all.rank() == 0 && options.on_device && options.parameter_tier != Tier::kDevice)
    tell_offload_param(config, layouts, placements);
  const std::vector<UnitOrigin> origins = origins_on_device(units);
  init_peak = engine_options.device.is_cpu() ? 0 : zeroshard::init_peak(layouts, *this, origins);
  int64_t model_bytes = 0;
  for (const UnitOrigin& origin : origins) model_bytes += origin.device_bytes;
  check_memory({layouts, options, bytes, model_bytes}, limits, engine_options, ranks.all);
  ledger.set_limits(limits.configured.of_tiers(options.on_device));
  if (options.on_device && holds_for_some_group(&GroupPlacement::host_updates))
    warn_of_few_threads(limits.ranks_of_host, ranks.all.rank());
}

}  // namespace zeroshard

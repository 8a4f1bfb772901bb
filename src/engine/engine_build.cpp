#include <malloc.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/shape_text.h"
#include "device/cpu_allocator.h"
#include "device/current_device.h"
#include "device/dtype.h"
#include "device/missing_memory.h"
#include "device/safetensors_dtype.h"
#include "device/swap_storage.h"
#include "engine/agreement.h"
#include "engine/check_matrices.h"
#include "engine/check_memory.h"
#include "engine/check_offload.h"
#include "engine/host_threads.h"
#include "engine/impl.h"
#include "engine/memory_needs.h"
#include "engine/swap_files.h"
#include "layout/matrix_owners.h"

namespace zeroshard {
namespace {

PlanOptions plan_options(const Config& config, c10::Device device, const Comm& comm, int num_moments) {
  PlanOptions plan = zeroshard::plan_options(config, /*on_device=*/!device.is_cpu());
  plan.world_size = comm.world_size();
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
                                     int world_size) {
  std::vector<UnitLayout> layouts;
  for (const UnitDefinition& unit : units) {
    std::vector<ParamSpec> params;
    for (const ParamDefinition& param : unit.params) {
      check_can_be_saved(param);
      const bool trains = param.requires_grad && param.param_group >= 0;
      params.push_back(
          {param.names, param.shape, compute_dtype(param, options.config), trains, is_matrix(param, options)});
      params.back().is_coded = has_coded_moments(params.back().numel(), options.config.moment_dtype);
    }
    layouts.push_back(make_unit_layout(unit.name, std::move(params), world_size));
  }
  return layouts;
}

NamedValues describe(const std::vector<UnitLayout>& layouts) {
  NamedValues values;
  for (const UnitLayout& unit : layouts) {
    for (const ParamSpec& param : unit.params) {
      values.emplace_back(param.name(), concat(shape_text(param.shape), " ", name_of(param.dtype),
                                               param.requires_grad ? "" : " frozen", param.is_matrix ? " matrix" : ""));
    }
  }
  return values;
}

template <typename Condition>
bool holds_for_some_group(const std::vector<UnitPlacement>& placements, const Condition& condition) {
  return std::ranges::any_of(placements,
                             [&](const UnitPlacement& unit) { return std::ranges::any_of(unit.groups, condition); });
}

bool keeps_states_elsewhere(const std::vector<UnitPlacement>& placements) {
  return holds_for_some_group(placements,
                              [](const GroupPlacement& group) { return group.state_tier() != Tier::kDevice; });
}

NamedValues describe(const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  NamedValues values;
  for (const auto& [name, buffer] : buffers)
    values.emplace_back(name, concat(shape_text(buffer.sizes()), " ", c10::toString(buffer.scalar_type())));
  return values;
}

// Copies rank 0's values to every rank. Buffers with the same values are not written, because some buffers cannot be
// written.
void share_buffers(Comm& comm, const std::vector<std::pair<std::string, at::Tensor>>& buffers) {
  if (comm.world_size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : buffers) {
    if (buffer.layout() != at::kStrided || buffer.is_quantized() || buffer.numel() == 0) continue;
    const at::Tensor mine = buffer.contiguous().view({-1}), first = mine.clone(), bytes = first.view(at::kByte);
    comm.broadcast({bytes.data_ptr(), bytes.numel(), DType::kOther1}, /*root=*/0, name)->wait();
    if (!bytes.equal(mine.view(at::kByte))) set_buffer(buffer, first.view_as(buffer));
  }
}

// glibc keeps memory that initialisation frees if it lies between blocks that stay. Over all units, that may be as much
// as the whole model. Returning it scans the whole heap, so it is not done after each of many small units.
constexpr int64_t kReturnBytes = 4 << 20;

void return_free_memory() {
#ifdef __GLIBC__
  // One thread at a time: if another malloc is used (jemalloc, a sanitizer's), this call is the first one to glibc's
  // own malloc, which initialises itself without a lock.
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  malloc_trim(0);
#endif
}

ReduceOptions reduce_options(const EngineOptions& options, int world_size) {
  const Config& config = options.config;
  ReduceOptions reduce;
  reduce.device = options.device;
  reduce.pack_scale = float(1 / config.prescale);
  reduce.sum_scale = float(config.prescale / (config.average_gradients ? world_size : 1));
  reduce.native = config.reduction == Config::Reduction::kNative;
  return reduce;
}

// Throws if a parameter belongs to another engine, because the two engines would take each other's gradients.
void check_free(const UnitLayout& layout, const std::vector<std::vector<at::Tensor>>& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (std::none_of(params[i].begin(), params[i].end(), is_swapped)) continue;
    throw StateError(concat("parameter '", layout.params[i].name(),
                            "' belongs to another engine, or to one that is gone: let that one return its units first "
                            "(Engine::return_unit)"));
  }
}

// Without param groups, uses the optimizer of the configuration. Muon has one group for the matrices of `units` and one
// for the other parameters. A device without an index becomes the current one.
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

}  // namespace

Engine::Impl::Impl(std::vector<UnitDefinition> units, EngineOptions engine_options, Comm& gather, Comm& reduce,
                   Comm* checkpoint_comm)
    : options(completed(std::move(engine_options), units)),
      gather_comm(gather),
      reduce_comm(reduce),
      checkpoint(checkpoint_comm),
      optimizer(options.optimizer, options.device, &ledger),
      scaler(options.config.fp16),
      progress(options.config, reduce.world_size()),
      gathers(options.device) {
  const Config& config = options.config;
  ZS_CHECK(!units.empty(), "the model has no parameters");
  layouts = make_layouts(units, options, gather.world_size());
  for (const auto& [what, values] : options.agreement) check_agreement(reduce, what, values);
  check_agreement(reduce, "parameters of the model", describe(layouts));
  check_agreement(reduce, "buffers of the model", describe(options.buffers));
  check_matrices(layouts, options);
  double momentum = 0;
  for (const ParamGroupOptions& group : options.param_groups) momentum = std::max(momentum, group.momentum);
  const int moments = !options.external_optimizer.empty() ? 0 : num_moments(options.optimizer, momentum != 0);
  const RankLimits limits = read_limits(options, reduce);
  const auto plan_of = [&](const Config& of) {
    PlanOptions made = plan_options(of, options.device, reduce, moments);
    made.masters_in_memory = !options.external_optimizer.empty();  // the external optimizer writes to master weights
    made.matrix_dtype = matrix_dtype(options);
    return made;
  };
  const std::optional<OptimizerConfig> configured = config.optimizer;
  if (!config.optimizer) options.config.optimizer.emplace();
  options.config.optimizer->type = options.optimizer;  // the rules of offload look at the optimizer that runs
  options.config.optimizer->momentum = momentum;
  options.config = choose_offload(options, layouts, limits, plan_of, reduce);
  check_offload(config, options.device, options.external_optimizer);
  options.config.optimizer = configured;
  plan = plan_of(config);
  const PlanReport report = plan_ledger(layouts, plan);
  if (reduce.rank() == 0 && plan.on_device && plan.parameter_tier != Tier::kDevice)
    tell_offload_param(config, layouts, report.placements);
  planned = report.bytes;
  const std::vector<UnitOrigin> origins = origins_on_device(units);
  const int64_t peak = options.device.is_cpu() ? 0 : init_peak(layouts, report, origins);
  int64_t model_bytes = 0;
  for (const UnitOrigin& origin : origins) model_bytes += origin.device_bytes;
  check_memory({layouts, plan, planned, model_bytes}, limits, options, reduce);
  ledger.set_limits(limits.configured.of_tiers(plan.on_device));
  placements = report.placements;
  if (plan.on_device && keeps_states_elsewhere(placements)) warn_of_few_threads(limits.ranks_of_host, reduce.rank());
  const auto build = [&] {
    make_groups(units, report);
    make_units(units);
    share_buffers(gather, options.buffers);
    options.buffers.clear();  // the model owns them
    make_reducer(report);
    watch = std::make_unique<WriteWatch>(*executor);
    held = std::make_unique<HeldValues>(*executor);
  };
  tell_missing_memory(build, [this, peak] { return memory_needs(layouts, planned, peak); });
  install_hooks(units);
  trim_cpu_memory();
}

void Engine::Impl::make_groups(const std::vector<UnitDefinition>& definitions, const PlanReport& report) {
  // On a device, the shards and states of a unit are allocated when the unit is made, because the tensors of earlier
  // units have been freed by then. On the CPU, zeroed memory takes no space until it is written.
  Groups::Options group_options{options.device, {}, /*unit_by_unit=*/!options.device.is_cpu(), {}};
  if (holds_for_some_group(placements, std::mem_fn(&GroupPlacement::updates_on_host))) {
    const RingClass& slots = report.parameter_copies;
    group_options.to_host = {.bytes = slots.slot_bytes,
                             .count = slots.slots,
                             .piece_numel = kCopiedNumel,
                             .pin = options.config.offload_optimizer.pin_memory};
  }
  if (holds_for_some_group(placements, std::mem_fn(&GroupPlacement::sends_parameters))) {
    const RingClass& slots = report.shard_copies;
    group_options.to_device = {.bytes = slots.slot_bytes,
                               .count = slots.slots,
                               .piece_numel = kCopiedNumel,
                               .on_host = false,
                               .category = Category::kGatherRing};
  }
  group_options.pin_states = options.config.offload_optimizer.pin_memory;
  group_options.pin_parameters = options.config.offload_param.pin_memory;
  const SwapContext context{layouts, placements, options, plan, reduce_comm, ledger};
  const auto on_failure = [this](const std::string& message) {
    fail_on_all_ranks("training cannot go on: " + message);
  };
  swap = make_swap_files(context, on_failure);
  parameter_swap = make_parameter_files(context, on_failure);
  gradient_swap = make_gradient_files(context, on_failure);
  activations = make_activation_keeper(options, reduce_comm, ledger, on_failure);
  group_options.while_a_save_reads = [this] { while_a_save_reads(); };
  group_options.states_in_files = swap.get();
  group_options.parameters_in_files = parameter_swap.get();
  for (const UnitDefinition& unit : definitions) {
    std::vector<int>& of_unit = group_options.param_groups.emplace_back();
    for (const ParamDefinition& param : unit.params) of_unit.push_back(param.param_group);
  }
  groups = std::make_unique<Groups>(layouts, placements, std::move(group_options), gather_comm, ledger);
}

void Engine::Impl::make_units(const std::vector<UnitDefinition>& definitions) {
  gather_ring = std::make_unique<SlotRing>(std::map<int64_t, int>{}, [this](int64_t size) {
    return FlatBuffer(size, options.device, ledger, Category::kGatherRing, &gather_comm);
  });
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<int> parents;
  int64_t freed_bytes = 0;  // upper limit of the bytes that units have freed since the last return_free_memory()
  for (size_t u = 0; u < layouts.size(); ++u) {
    if (!options.device.is_cpu()) groups->add_unit();
    UnitSource source{definitions[u].tensors(), {}};
    check_free(layouts[u], source.params);
    if (const ParameterReader& read = definitions[u].values) {
      source.values = [&, u](size_t index, int64_t begin, int64_t end, float* out) {
        read(layouts[u].params[index].name(), begin, end, out);
      };
    }
    units.push_back(std::make_unique<Unit>(layouts[u], groups->of_unit(u), placements[u].parameters, std::move(source),
                                           options.device, gather_comm, *gather_ring, gathers));
    parents.push_back(definitions[u].parent);
    freed_bytes += layouts[u].full_bytes();
    if (freed_bytes < kReturnBytes && u + 1 < layouts.size()) continue;
    return_free_memory();
    freed_bytes = 0;
  }
  gather_ring->add(slots_by_size(zeroshard::gather_ring(layouts, placements, plan)));
  Executor::Callbacks callbacks;
  callbacks.on_unit_done = [this](size_t unit) { end_unit_of_backward(unit); };
  if (parameter_swap) callbacks.on_upcoming = [this](std::span<const size_t> units) { read_parameters_ahead(units); };
  const auto is_sharded = [](const auto& unit) { return unit->placement() == Placement::kSharded; };
  if (std::any_of(units.begin(), units.end(), is_sharded)) {
    callbacks.max_over_ranks = [this](int64_t number) {
      return all_reduce(gather_comm, {number}, ReduceOp::kMax, "unit of backward")[0];
    };
  }
  const auto depth = [this](const UnitLayout& layout) { return prefetch_depth(layout.full_bytes(), plan); };
  executor = std::make_unique<Executor>(std::move(units), parents, depth, std::move(callbacks));
}

void Engine::Impl::make_reducer(const PlanReport& report) {
  Reducer::Options reduce;
  static_cast<ReduceOptions&>(reduce) = reduce_options(options, reduce_comm.world_size());
  reduce.overlap = options.config.overlap_comm;
  reduce.ring = reduce_ring(layouts, placements);
  reduce.exit_buffers = gradient_exit(layouts, placements);
  reduce.pin = options.config.offload_optimizer.pin_memory;
  reduce.while_read = [this] { while_an_update_goes_on(); };
  reduce.scratch = exchange_scratch(layouts, placements, plan);
  reduce.files = gradient_swap.get();
  reducer = std::make_unique<Reducer>(layouts, placements, reduce, reduce_comm, ledger);
  if (plan.matrix_dtype && report.matrix_ring.slots > 0) {
    std::vector<ShardedGroup*> of_matrices;
    for (ShardedGroup* const group : groups->trained())
      if (group->flat().is_matrix) of_matrices.push_back(group);
    matrices = std::make_unique<MatrixUpdate>(
        matrix_batches(layouts, placements, reduce_comm.world_size()), std::move(of_matrices), optimizer,
        MatrixUpdate::Options{options.optimizer, options.device, *plan.matrix_dtype, report.matrix_ring}, reduce_comm,
        ledger);
  }
  if (plan.delayed_update)
    delayed = std::make_unique<DelayedUpdate>(groups->trained(), optimizer, options.device, reduce.pin, ledger,
                                              [this] { while_an_update_goes_on(); });
  const RingClass& fetch = report.gradient_fetch;
  if (fetch.units == 0) return;
  const Mover::Slots slots{
      .bytes = fetch.slot_bytes, .count = fetch.slots, .piece_numel = kFetchedNumel, .pin = reduce.pin};
  gradient_fetch = std::make_unique<GradientFetch>(options.device, slots, ledger);
}

void Engine::Impl::install_hooks(const std::vector<UnitDefinition>& units) {
  hooks.resize(layouts.size());
  for (size_t u = 0; u < layouts.size(); ++u) {
    for (size_t i = 0; i < layouts[u].params.size(); ++i) {
      if (!units[u].params[i].requires_grad) continue;
      for (const at::Tensor& tensor : executor->unit(u).tensors(i)) {
        if (!layouts[u].params[i].requires_grad) {
          hooks[u].push_back({tensor, {[] {}, [](const at::Tensor&) {}}});  // frozen, so its gradient is dropped
          continue;
        }
        stand_ins.add(tensor, {u, i}, layouts[u].params[i].name());
        const auto take = [this, u, i](const at::Tensor& grad) { add_gradient(u, i, grad); };
        hooks[u].push_back({tensor, {[this] { before_gradient(); }, take}});
      }
    }
  }
}

}  // namespace zeroshard

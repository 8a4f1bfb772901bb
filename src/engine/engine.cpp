#include "zeroshard/engine.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/check.h"
#include "base/log.h"
#include "comm/comm.h"
#include "device/dtype.h"
#include "engine/agreement.h"
#include "engine/consensus.h"
#include "engine/executor.h"
#include "hooks/autograd_hooks.h"
#include "memory/ledger.h"
#include "optim/sharded_optimizer.h"
#include "plan/plan_ledger.h"
#include "precision/loss_scaler.h"
#include "reduce/reducer.h"

namespace zeroshard {
namespace {

PlanOptions plan_options(const EngineOptions& options, const Comm& comm, int num_moments) {
  PlanOptions plan = zeroshard::plan_options(options.config);
  plan.world_size = comm.world_size();
  plan.optimizer_slots = num_moments;
  plan.exchange_needs_scratch =
      comm.exchange_needs_scratch() && options.config.reduction == Config::Reduction::kCanonical;
  return plan;
}

DType compute_dtype(const ParamDefinition& param, const Config& config) {
  const DType own = to_dtype(param.dtype);
  const bool cast = config.compute_dtype != DType::kFloat32 && is_floating_point(own);
  return cast ? config.compute_dtype : own;
}

std::vector<UnitLayout> make_layouts(const std::vector<UnitDefinition>& units, const Config& config, int world_size) {
  std::vector<UnitLayout> layouts;
  for (const UnitDefinition& unit : units) {
    std::vector<ParamSpec> params;
    for (const ParamDefinition& param : unit.params) {
      params.push_back({param.names, param.shape, compute_dtype(param, config), param.requires_grad});
    }
    layouts.push_back(make_unit_layout(unit.name, std::move(params), world_size));
  }
  return layouts;
}

NamedValues describe(const std::vector<UnitLayout>& layouts) {
  NamedValues values;
  for (const UnitLayout& unit : layouts) {
    for (const ParamSpec& param : unit.params) {
      std::string shape;
      for (const int64_t size : param.shape) shape += concat(shape.empty() ? "" : ", ", size);
      values.emplace_back(param.name(),
                          concat("[", shape, "] ", name_of(param.dtype), param.requires_grad ? "" : " frozen"));
    }
  }
  return values;
}

ReduceOptions reduce_options(const EngineOptions& options, int world_size) {
  const Config& config = options.config;
  ReduceOptions reduce;
  reduce.device = options.device;
  reduce.stage = config.stage;
  reduce.world_size = world_size;
  reduce.wire_dtype = config.communication_dtype;
  reduce.accumulates = config.grad_accumulation_steps > 1;
  reduce.grad_dtype = config.grad_accum_dtype;
  if (!reduce.grad_dtype && reduce.accumulates) reduce.grad_dtype = DType::kFloat32;
  reduce.pack_scale = float(1 / config.prescale);
  reduce.sum_scale = float(config.prescale / (config.average_gradients ? world_size : 1));
  reduce.native = config.reduction == Config::Reduction::kNative;
  return reduce;
}

}  // namespace

struct Engine::Impl {
  Impl(std::vector<UnitDefinition> units, EngineOptions engine_options, Comm& gather, Comm& reduce);

  void make_optimizer(const std::vector<UnitDefinition>& units);
  void make_units(const std::vector<UnitDefinition>& units);
  void make_reducer();
  void install_hooks();
  Placement placement(const UnitLayout& layout) const;
  size_t shard_index(size_t unit, size_t group) const { return size_t(shard_of[unit][group]); }
  void report_skip(double scale);

  EngineOptions options;
  Comm& gather_comm;
  Comm& reduce_comm;
  Ledger ledger;
  PlanOptions plan;
  Bytes planned;
  std::vector<UnitLayout> layouts;
  FlatBuffer param_memory;
  std::unique_ptr<SlotRing> gather_ring;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::vector<std::vector<int>> shard_of;  // [unit][group] -> index in the optimizer, -1 when frozen
  std::unique_ptr<Reducer> reducer;
  std::unique_ptr<Executor> executor;
  std::vector<GradHook> hooks;
  BackwardHooks backward_hooks;
  LossScaler scaler;
  bool pending_backward = false;  // gradients have come since the last end_backward()
  bool sync = true;
  int skipped = 0;
  Consensus consensus;  // of the step that is being applied
  float grad_scale = 1;
};

Engine::Impl::Impl(std::vector<UnitDefinition> units, EngineOptions engine_options, Comm& gather, Comm& reduce)
    : options(std::move(engine_options)), gather_comm(gather), reduce_comm(reduce), scaler(options.config.fp16) {
  const Config& config = options.config;
  ZS_CHECK(!units.empty(), "the model has no parameters");
  if (options.param_groups.empty()) {
    options.param_groups.push_back(ParamGroupOptions::from(config.optimizer.value_or(OptimizerConfig{})));
    if (config.optimizer) options.optimizer = config.optimizer->type;
  }
  layouts = make_layouts(units, config, gather.world_size());
  check_agreement(reduce, options.device, "configuration", options.agreement);
  check_agreement(reduce, options.device, "parameters of the model", describe(layouts));
  bool momentum = false;
  for (const ParamGroupOptions& group : options.param_groups) momentum = momentum || group.momentum != 0;
  const int moments = options.external_optimizer ? 0 : num_moments(options.optimizer, momentum);
  plan = plan_options(options, reduce, moments);
  planned = plan_ledger(layouts, plan).bytes;
  make_optimizer(units);
  make_units(units);
  make_reducer();
  install_hooks();
}

void Engine::Impl::make_optimizer(const std::vector<UnitDefinition>& units) {
  std::vector<ShardView> shards;
  for (size_t u = 0; u < layouts.size(); ++u) {
    shard_of.emplace_back();
    for (const FlatGroup& group : layouts[u].groups) {
      shard_of.back().push_back(group.requires_grad ? int(shards.size()) : -1);
      if (!group.requires_grad) continue;
      ShardView view{&group, {}, {}, {}};
      for (const size_t i : group.params) view.param_group.push_back(units[u].params[i].param_group);
      shards.push_back(std::move(view));
    }
  }
  const OptimOptions optim{options.device, gather_comm.rank(), options.config.stage == 0, options.optimizer,
                           plan.optimizer_slots};
  optimizer = std::make_unique<ShardedOptimizer>(std::move(shards), optim, ledger);
}

Placement Engine::Impl::placement(const UnitLayout& layout) const {
  if (!shards_parameters(plan)) return Placement::kReplicated;
  return is_persistent(layout, plan) ? Placement::kPersistent : Placement::kSharded;
}

void Engine::Impl::make_units(const std::vector<UnitDefinition>& definitions) {
  int64_t bytes = 0;
  for (const UnitLayout& layout : layouts) bytes += Unit::memory_bytes(layout, placement(layout));
  std::map<int64_t, int> slots;
  for (const RingClass& size_class : zeroshard::gather_ring(layouts, plan))
    slots[size_class.slot_bytes] = size_class.slots;
  param_memory = FlatBuffer(gather_comm, bytes, options.device, ledger, Category::kParameters, "parameters");
  gather_ring = std::make_unique<SlotRing>(
      slots, [this](int64_t size) { return FlatBuffer(size, options.device, ledger, Category::kGatherRing); });
  std::vector<std::unique_ptr<Unit>> units;
  std::vector<int> parents;
  char* memory = param_memory.data();
  for (size_t u = 0; u < layouts.size(); ++u) {
    UnitSource source{definitions[u].tensors(), memory, {}};
    for (size_t g = 0; g < layouts[u].groups.size(); ++g) {
      source.masters.push_back(shard_of[u][g] < 0 ? at::Tensor() : optimizer->master(shard_index(u, g)));
    }
    units.push_back(std::make_unique<Unit>(layouts[u], placement(layouts[u]), std::move(source), options.device,
                                           gather_comm, *gather_ring, ledger));
    parents.push_back(definitions[u].parent);
    memory += Unit::memory_bytes(layouts[u], placement(layouts[u]));
  }
  executor =
      std::make_unique<Executor>(std::move(units), std::move(parents), prefetch_depth(plan), [this](size_t unit) {
        if (sync) reducer->flush(unit);
      });
}

void Engine::Impl::make_reducer() {
  Reducer::Options reduce;
  static_cast<ReduceOptions&>(reduce) = reduce_options(options, reduce_comm.world_size());
  reduce.overlap = options.config.overlap_comm;
  reduce.max_slots = reduce_slots(std::numeric_limits<int>::max());
  std::vector<const UnitLayout*> pointers;
  for (size_t u = 0; u < layouts.size(); ++u) pointers.push_back(&executor->unit(u).layout());
  reducer = std::make_unique<Reducer>(pointers, reduce, reduce_comm, ledger);
  for (size_t u = 0; u < layouts.size(); ++u) {
    for (size_t g = 0; g < layouts[u].groups.size(); ++g) {
      if (shard_of[u][g] < 0) continue;
      Unit& unit = executor->unit(u);
      const bool whole = options.config.stage == 0;
      optimizer->bind(shard_index(u, g), whole ? unit.full(g) : unit.shard(g), reducer->bucket(u, g)->grads());
    }
  }
}

void Engine::Impl::install_hooks() {
  for (size_t u = 0; u < layouts.size(); ++u) {
    for (size_t i = 0; i < layouts[u].params.size(); ++i) {
      if (!layouts[u].params[i].requires_grad) continue;
      for (const at::Tensor& tensor : executor->unit(u).tensors(i)) {
        hooks.emplace_back(tensor, [this, u, i](const at::Tensor& grad) {
          pending_backward = true;
          reducer->add(u, i, grad, sync);
        });
      }
    }
  }
}

void Engine::Impl::report_skip(double scale) {
  ++skipped;
  const auto bad = find_non_finite(reduce_comm, options.device, optimizer->slices());
  std::string where;
  if (bad) {
    for (size_t u = 0; u < layouts.size(); ++u) {
      for (size_t g = 0; g < layouts[u].groups.size(); ++g) {
        if (shard_of[u][g] != int(bad->first)) continue;
        where = concat(" in '", layouts[u].params[layouts[u].groups[g].params[bad->second]].name(), "'");
      }
    }
  }
  const std::string fp16 = options.config.fp16.enabled ? concat(", loss scale ", scale, " -> ", scaler.scale()) : "";
  const std::string message = concat("step skipped on all ranks: the gradient is not finite", where, fp16);
  if (reduce_comm.rank() == 0) log(LogLevel::kWarning, message);
  if (skipped < options.config.max_skipped_steps) return;
  throw StateError(concat(message, "; ", skipped,
                          " steps in a row were skipped (zeroshard.max_skipped_steps). Lower the "
                          "learning rate, look for inf or NaN in the data, or train in bf16"));
}

Engine::Engine(std::vector<UnitDefinition> units, EngineOptions options, Comm& gather, Comm& reduce)
    : impl_(std::make_unique<Impl>(std::move(units), std::move(options), gather, reduce)) {}
Engine::~Engine() = default;

void Engine::begin_forward(bool training) {
  impl_->backward_hooks.forget();
  impl_->executor->begin_pass(training);
}

void Engine::pre_forward(size_t unit) {
  impl_->executor->pre_forward(unit, zeroshard::in_backward());
}

void Engine::post_forward(size_t unit, const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    impl_->backward_hooks.add(output, [impl = impl_.get(), unit, key = output.unsafeGetTensorImpl()] {
      impl->executor->pre_backward(unit, key);
    });
  }
  impl_->executor->post_forward(unit, zeroshard::in_backward());
}

at::Tensor Engine::scale_loss(const at::Tensor& loss, bool average) const {
  const int64_t steps = average ? impl_->options.config.grad_accumulation_steps : 1;
  const at::Tensor averaged = steps > 1 ? loss / double(steps) : loss;
  return loss_scale() == 1 ? averaged : averaged * loss_scale();
}

void Engine::begin_backward(bool sync) {
  impl_->sync = sync;
}

void Engine::end_backward() {
  impl_->executor->end_backward();
  impl_->reducer->end_backward(impl_->sync);
  impl_->pending_backward = false;
  impl_->sync = true;
}

void Engine::backward(const at::Tensor& loss) {
  begin_backward();
  scale_loss(loss).backward();
  end_backward();
}

StepResult Engine::prepare_step() {
  Impl& impl = *impl_;
  if (impl.pending_backward) end_backward();  // loss.backward() was called instead of backward(loss)
  impl.reducer->gather_reduced();
  std::vector<std::vector<bool>> has_grad;
  for (size_t u = 0; u < impl.layouts.size(); ++u) {
    for (size_t g = 0; g < impl.layouts[u].groups.size(); ++g) {
      if (impl.shard_of[u][g] < 0) continue;
      const GradBucket& bucket = *impl.reducer->bucket(u, g);
      std::vector<bool>& flags = has_grad.emplace_back();
      for (size_t i = 0; i < bucket.group().params.size(); ++i) flags.push_back(bucket.has_grad(i));
    }
  }
  impl.consensus = agree_on_step(impl.reduce_comm, impl.options.device, impl.reducer->squares(), std::move(has_grad));
  StepResult result;
  result.loss_scale = loss_scale();
  result.applied = impl.consensus.finite;
  result.grad_norm =
      result.applied ? std::sqrt(impl.consensus.squares) / result.loss_scale : std::numeric_limits<double>::quiet_NaN();
  const double clip = impl.options.config.gradient_clipping;
  // torch.nn.utils.clip_grad_norm_: the norm is compared in fp32, with this epsilon.
  const float coefficient = clip > 0 ? float(clip) / (float(result.grad_norm) + 1e-6F) : 1;
  impl.grad_scale = std::min(coefficient, 1.0F) / float(result.loss_scale);
  return result;
}

StepResult Engine::step(const std::vector<ParamGroupOptions>& groups) {
  const StepResult result = prepare_step();
  if (result.applied) impl_->optimizer->step(groups, impl_->consensus.has_grad, impl_->grad_scale);
  finish_step(result);
  return result;
}

StepResult Engine::step() {
  return step(impl_->options.param_groups);
}

std::vector<OptimizerSlice> Engine::slices() {
  std::vector<OptimizerSlice> result;
  const auto& has_grad = impl_->consensus.has_grad;
  std::vector<std::pair<size_t, size_t>> group_of(impl_->optimizer->shards().size());
  for (size_t u = 0; u < impl_->layouts.size(); ++u) {
    for (size_t g = 0; g < impl_->layouts[u].groups.size(); ++g) {
      if (impl_->shard_of[u][g] >= 0) group_of[impl_->shard_index(u, g)] = {u, g};
    }
  }
  for (const ParamSlice& slice : impl_->optimizer->slices()) {
    const auto [u, g] = group_of[slice.shard];
    const UnitLayout& layout = impl_->layouts[u];
    OptimizerSlice out{
        layout.params[layout.groups[g].params[slice.index]].name(), slice.param_group, slice.master, false, {}};
    out.has_grad = !has_grad.empty() && has_grad[slice.shard][slice.index];
    if (out.has_grad) out.grad = slice.grad.to(at::kFloat).mul(impl_->grad_scale);
    result.push_back(std::move(out));
  }
  return result;
}

void Engine::finish_step(const StepResult& result) {
  Impl& impl = *impl_;
  impl.scaler.update(!result.applied);
  if (result.applied) {
    impl.skipped = 0;
    if (impl.options.external_optimizer) impl.optimizer->publish_masters();
    if (impl.options.config.stage > 0) impl.executor->refresh();  // at stage 0 every rank has updated everything
  } else {
    impl.report_skip(result.loss_scale);
  }
  impl.reducer->end_step();
}

void Engine::gather(const std::vector<size_t>& units) {
  for (const size_t unit : units) impl_->executor->hold(unit);
}

void Engine::release(const std::vector<size_t>& units, int modify_rank) {
  ZS_CHECK(modify_rank < impl_->gather_comm.world_size(), "modify_rank is ", modify_rank, ", but there are ",
           impl_->gather_comm.world_size(), " ranks");
  for (const size_t u : units) {
    Unit& unit = impl_->executor->unit(u);
    if (modify_rank >= 0) {
      unit.write_back(modify_rank);
      for (size_t g = 0; g < unit.layout().groups.size(); ++g) {
        if (impl_->shard_of[u][g] < 0) continue;
        const at::Tensor& master = impl_->optimizer->master(impl_->shard_index(u, g));
        if (master.defined()) master.copy_(impl_->optimizer->shards()[impl_->shard_index(u, g)].param);
      }
    }
    impl_->executor->release(u);
  }
}

double Engine::loss_scale() const {
  return impl_->options.config.fp16.enabled ? impl_->scaler.scale() : 1;
}
int Engine::skipped_in_a_row() const {
  return impl_->skipped;
}
const Config& Engine::config() const {
  return impl_->options.config;
}
size_t Engine::num_units() const {
  return impl_->layouts.size();
}

std::vector<MemoryLine> Engine::memory() const {
  const Bytes peak = impl_->ledger.peak();
  std::vector<MemoryLine> lines;
  for (size_t i = 0; i < kNumCategories; ++i) {
    const auto category = Category(i);
    const int64_t planned = impl_->planned.at(category, Tier::kDevice), measured = peak.at(category, Tier::kDevice);
    if (planned != 0 || measured != 0) lines.push_back({std::string(name_of(category)), planned, measured});
  }
  return lines;
}

}  // namespace zeroshard

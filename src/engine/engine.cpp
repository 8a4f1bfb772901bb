#include "zeroshard/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "device/cpu_allocator.h"
#include "device/swap_storage.h"
#include "engine/agreement.h"
#include "engine/impl.h"
#include "engine/replica_check.h"
#include "zeroshard/rank_observer.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

// Returns the settings as text, each with enough digits to distinguish it from its neighbours.
NamedValues settings_of(const std::vector<ParamGroupOptions>& groups) {
  NamedValues settings;
  for (size_t i = 0; i < groups.size(); ++i) {
    ParamGroupOptions::for_each([&](const char* name, auto member) {
      std::array<char, 32> text;
      const auto end = std::to_chars(text.data(), text.data() + text.size(), double(groups[i].*member)).ptr;
      settings.emplace_back(concat(name, " of group ", i), std::string(text.data(), end));
    });
  }
  return settings;
}

}  // namespace

void Engine::Impl::renew_hooks(size_t unit) const {
  if (!in_use) return;
  for (const GradHook& hook : hooks[unit]) hook.renew();
}

void Engine::Impl::report_skip(double scale) {
  const std::string bad = find_non_finite(ranks.reduce, memory->groups->trained(), reducer->buckets());
  const std::string where = bad.empty() ? "" : concat(" in '", bad, "'");
  const std::string fp16 = options.config.fp16.enabled ? concat(", loss scale ", scale, " -> ", scaler.scale()) : "";
  const std::string message = concat("step skipped on all ranks: the gradient is not finite", where, fp16);
  if (ranks.reduce.rank() == 0) log(LogLevel::kWarning, message);
  const int skipped = progress.skipped_in_a_row();
  if (skipped < options.config.max_skipped_steps) return;
  throw StateError(concat(message, "; ", skipped,
                          " steps in a row were skipped (zeroshard.max_skipped_steps). Lower the "
                          "learning rate, look for inf or NaN in the data, or train in bf16"));
}

// Hashes the values that must be the same on all ranks at a step: which parameters require a gradient, whose gradients
// the user has dropped, and the groups' settings.
uint32_t Engine::Impl::hash_of_step(const std::vector<ParamGroupOptions>& groups) const {
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) { hash = (hash ^ (hash >> 29)) * 0x9E3779B97F4A7C15ULL + value; };
  for (const at::Tensor& tensor : stand_ins.tensors()) add(tensor.requires_grad() ? 1 : 2);
  for (const std::string& name : dropped) add(std::hash<std::string>()(name));
  for (const ParamGroupOptions& group : groups)
    ParamGroupOptions::for_each([&](const char*, auto member) { add(std::bit_cast<uint64_t>(double(group.*member))); });
  return uint32_t((hash ^ (hash >> 29)) * 0x9E3779B97F4A7C15ULL >> 32);
}

// Call it after the consensus, whose results are the same on all ranks.
void Engine::Impl::check_step(const std::vector<ParamGroupOptions>& groups) {
  if (!consensus.same_hash) {
    NamedValues now;
    for (size_t u = 0; u < plan.layouts.size(); ++u) {
      for (size_t i = 0; i < plan.layouts[u].params.size(); ++i) {
        const bool is_frozen = !executor->unit(u).tensors(i).front().requires_grad();
        now.emplace_back(plan.layouts[u].params[i].name(), is_frozen ? "frozen" : "to be trained");
      }
    }
    check_agreement(ranks.reduce, "parameters that require a gradient", now);
    check_agreement(ranks.reduce, "param groups of the optimizer", settings_of(groups));
    NamedValues without;
    for (const std::string& name : dropped) without.emplace_back(name, "dropped (param.grad = None)");
    check_agreement(ranks.reduce, "gradients that were dropped", without);
  }
  if (consensus.signals.assigned) {
    const std::string name = assigned_gradient();
    throw StateError(concat(name.empty() ? "on another rank a parameter" : concat("parameter '", name, "'"),
                            " was given a gradient (param.grad = ...), which step() does not use: it has the gradients "
                            "of backward passes. Set it to None, or call zero_grad(), and use "
                            "zeroshard.set_gradient(param, values)"));
  }
  if (consensus.some_have_gradients == consensus.all_have_gradients) return;
  throw StateError(concat("step(): there are gradients since the last step on some ranks alone, and rank ",
                          ranks.reduce.rank(), progress.is_unapplied() ? " has some" : " has none",
                          ". Every rank calls backward and zero_grad as often as the others"));
}

// Call it before the update, because the update of stages 1 and 2 overwrites elements that other ranks own.
void Engine::Impl::compare_replicas() {
  const int every = options.config.check_replicas_every;
  if (every == 0 || ++uncompared_steps < every) return;
  uncompared_steps = 0;
  std::vector<std::pair<std::string, at::Tensor>> replicas;
  for (size_t u = 0; u < plan.layouts.size(); ++u) {
    const Unit& unit = executor->unit(u);
    if (unit.placement() != Placement::kReplicated) continue;
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i)
      replicas.emplace_back(plan.layouts[u].params[i].name(), unit.tensors(i).front());
  }
  check_replicas(ranks.reduce, replicas,
                 "(zeroshard.check_replicas_every) Faulty memory, or code that wrote into it on one rank alone: go on "
                 "from the last checkpoint");
}

namespace {

// If the options have no observer, the world's observer is told about steps.
EngineOptions observed(EngineOptions options, const World& world) {
  if (!options.observer) options.observer = world.observer();
  return options;
}

}  // namespace

Engine::Engine(std::vector<UnitDefinition> units, EngineOptions options, Comm& gather, Comm& reduce, Comm* checkpoint)
    : impl_(std::make_unique<Impl>(std::move(units), std::move(options), gather, reduce, checkpoint)) {}

Engine::Engine(std::vector<UnitDefinition> units, EngineOptions options, std::unique_ptr<World> world)
    : world_(std::move(world)),
      impl_(std::make_unique<Impl>(std::move(units), observed(std::move(options), *world_), world_->gather(),
                                   world_->reduce(), world_->checkpoint())) {}

Engine::~Engine() {
  // A forked child has neither the threads nor the peers that the destructors of the engine need. The memory is freed
  // when the child ends.
  if (impl_ && !impl_->ranks.process.is_own()) static_cast<void>(impl_.release());
  const auto observer = impl_ ? impl_->options.observer : nullptr;
  impl_.reset();  // may wait for a running save
  if (observer) observer->engine_ended();
}

void Engine::begin_forward(bool training) {
  const WithoutTransforms plain_tensors;
  impl_->check_whole();
  impl_->discard_failed_pass();
  if (training) impl_->last_grad_scale.reset();
  for (size_t unit = 0; unit < impl_->hooks.size(); ++unit) impl_->renew_hooks(unit);
  if (impl_->has_lent_shards) impl_->memory->gathers.after_current_stream();
  impl_->executor->begin_pass(training);
  impl_->ended_before_gradients.clear();
  if (!training) end_cpu_memory_step();  // an evaluation has no step that could end the memory step
}

std::shared_ptr<KeptTensor> Engine::keep(const at::Tensor& tensor) {
  if (!impl_->memory->activations) return nullptr;
  // Views of parameters stay, because updates and gathers write to them without a change of their version.
  if (is_swapped(tensor)) {
    for (size_t u = 0; u < impl_->executor->size(); ++u)
      if (impl_->executor->unit(u).owns(tensor)) return nullptr;
  }
  return impl_->memory->activations->keep(tensor);
}

bool Engine::keeps_tensors() const {
  return impl_->memory->activations != nullptr;
}

void Engine::pre_forward(size_t unit) {
  impl_->ranks.check_caller();
  const WithoutTransforms plain_tensors;
  impl_->renew_hooks(unit);  // needed if the module was cast without the engine
  impl_->executor->pre_forward(unit, zeroshard::in_backward());
}

bool Engine::post_forward(size_t unit, const std::vector<at::Tensor>& outputs) {
  impl_->ranks.check_caller();
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad() || output.is_leaf()) continue;  // it is a parameter: nothing was computed
    // The graph may outlive the engine.
    impl_->backward_hooks.add(output, [impl = impl_.get(), alive = std::weak_ptr(impl_->in_use), unit,
                                       publishes = impl_->publishes](int64_t tensor) {
      if (!alive.expired()) impl->pre_backward(unit, tensor, publishes);
    });
  }
  const WithoutTransforms plain_tensors;
  const Unit& own = impl_->executor->unit(unit);
  // Returns true if an output lies in memory that is freed when the unit is resharded.
  const bool is_own = own.placement() == Placement::kSharded &&
                      std::any_of(outputs.begin(), outputs.end(), [&](const auto& output) { return own.owns(output); });
  if (!is_own) impl_->executor->post_forward(unit, zeroshard::in_backward());
  return is_own;
}

bool Engine::is_in_backward(size_t unit) const {
  return impl_->executor->is_in_backward(unit);
}

void Engine::end_unit(size_t unit, const std::vector<at::Tensor>& outputs) {
  if (!post_forward(unit, outputs)) return;
  throw StateError(concat("unit '", impl_->plan.layouts[unit].name,
                          "' returned a parameter of its own or a view of one, which is sharded from here on: return a "
                          "copy of it, or name in zeroshard.unit_classes a class of module that contains who uses it"));
}

void Engine::Impl::check_no_change_begun(const char* call) const {
  if (!held->may_change()) return;
  throw StateError(concat(call,
                          " inside zeroshard.gathered(..., modify_rank=...) would mix its values with those that "
                          "are written there: leave the context first, on every rank"));
}

StepResult Engine::prepare_step(const std::vector<ParamGroupOptions>& groups) {
  Impl& impl = *impl_;
  impl.check_whole();
  impl.check_no_change_begun("step()");
  impl.discard_failed_pass();
  impl.take_dropped();
  const bool is_unsynced = impl.progress.is_unsynced();  // gradients of a pass under no_sync are not reduced yet
  if (is_unsynced) begin_backward();
  // See Note [Backward passes that are none of the engine's].
  const bool has_other = impl.has_other_pass && impl.progress.is_unapplied();
  // Open gradients mean that loss.backward() was called instead of backward(loss).
  const bool ends_pass = is_unsynced || impl.progress.has_open_gradients();
  if (ends_pass || (has_other && impl.executor->is_in_backward())) {
    end_backward();
  } else if (has_other) {  // a later forward has ended the units
    impl.end_launched();
  }
  impl.executor->end_gathers_ahead();
  impl.reducer->gather_reduced();
  std::vector<std::vector<bool>> has_grad;
  for (const GradBucket& bucket : impl.reducer->buckets()) {
    std::vector<bool>& flags = has_grad.emplace_back();
    for (size_t i = 0; i < bucket.group().params.size(); ++i) flags.push_back(bucket.has_grad(i));
  }
  const StepSignals signals{impl.async_saver && impl.async_saver->failed(), impl.stop_requested.load(),
                            impl.watch->any_written() || impl.wrote_late(), !impl.assigned_gradient().empty()};
  const StepState state{impl.progress.is_unapplied(), impl.hash_of_step(groups)};
  impl.ranks.reduce.await_device("gradients of the step");
  impl.consensus = agree_on_step(impl.ranks.reduce, impl.reducer->squares(), std::move(has_grad), signals, state);
  impl.check_step(groups);
  if (impl.consensus.signals.wrote) impl.check_late_writes();
  impl.compare_replicas();
  impl.take_writes(impl.consensus.signals.wrote);
  // Writes of users before the first delayed update count, and later writes will be detected.
  if (impl.delayed && !impl.has_pending_update()) {
    impl.take_writes_to_groups();
    impl.remember_open_parameters();
  }
  if (!impl.options.external_optimizer.empty()) {
    impl.take_writes_to_groups();
    impl.memory->groups->await_copies();  // the external optimizer writes to states directly
  }
  StepResult result;
  result.loss_scale = loss_scale();
  result.applied = impl.consensus.finite;
  result.stop = impl.consensus.signals.stop;
  result.save_failed = impl.consensus.signals.save_failed;
  result.grad_norm =
      result.applied ? std::sqrt(impl.consensus.squares) / result.loss_scale : std::numeric_limits<double>::quiet_NaN();
  const double clip = impl.options.config.gradient_clipping;
  // Like torch.nn.utils.clip_grad_norm_, compares the norm in fp32 with this epsilon.
  const float coefficient = clip > 0 ? float(clip) / (float(result.grad_norm) + 1e-6F) : 1;
  impl.grad_scale = std::min(coefficient, 1.0F) / float(result.loss_scale);
  return result;
}

StepResult Engine::step(const std::vector<ParamGroupOptions>& groups) {
  Impl& impl = *impl_;
  const StepResult result = prepare_step(groups);
  if (result.applied) impl.optimizer.check(impl.memory->groups->trained(), groups);
  GradientFetch* const fetch = impl.gradient_fetch.get();
  const auto gradients = [&](const ShardedGroup& group) {
    return UpdateGradients{impl.bucket_of(group).reduced(), fetch};
  };
  const auto has_grad = [&](const ShardedGroup& group) -> const std::vector<bool>& {
    return impl.consensus.has_grad[group.number()];
  };
  const auto update = [&](ShardedGroup& group) {
    if (group.flat().is_matrix) return;  // already updated
    impl.optimizer.update(group, gradients(group), groups, has_grad(group), impl.grad_scale);
  };
  if (impl.delayed) {
    impl.publish_update();
    impl.finish_step(result, [&] { impl.begin_delayed(groups); });
    return result;
  }
  try {
    if (result.applied) impl.announce_gradients();
    impl.finish_step(result, [&] {
      if (impl.matrices) impl.matrices->update({gradients, groups, has_grad, impl.grad_scale});
      impl.update_all(update);
    });
  } catch (...) {  // copies of these gradients must end before the next gradients arrive
    if (fetch) fetch->end();
    throw;
  }
  return result;
}

StepResult Engine::step() {
  return step(impl_->options.param_groups);
}

std::vector<OptimizerSlice> Engine::slices() {
  const Impl& impl = *impl_;
  std::vector<OptimizerSlice> result;
  impl.await_update();
  for (const ShardedGroup* const group : impl.memory->groups->trained()) {
    // The external optimizer may write to the master weights.
    if (!impl.options.external_optimizer.empty()) group->forget_parameters();
    for (const ParamSlice& slice : zeroshard::slices(*group)) {
      const ParamSpec& param = group->param(slice.index);
      OptimizerSlice out{
          param.name(), group->param_group(slice.index), slice.master, false, {}, slice.moments, param.shape,
          slice.begin};
      out.has_grad = !impl.consensus.has_grad.empty() && impl.consensus.has_grad[group->number()][slice.index];
      // The gradient is converted where the update runs, because a device may have no memory to spare.
      if (out.has_grad) {
        const at::Tensor grad = impl.bucket_of(*group).part(group->state_range(slice.index));
        out.grad = grad.to(slice.master.device()).to(at::kFloat).mul(impl.grad_scale);
      }
      result.push_back(std::move(out));
    }
  }
  return result;
}

std::pair<ShardedGroup*, size_t> Engine::Impl::find_trained(const std::string& name) const {
  for (ShardedGroup* const group : memory->groups->trained())
    for (size_t i = 0; i < group->num_params(); ++i)
      if (group->param(i).name() == name) return {group, i};
  throw ValueError(concat("no parameter '", name, "' is trained"));
}

void Engine::set_updates(const std::string& name, int64_t updates) {
  const auto [group, index] = impl_->find_trained(name);
  group->updates()[index] = updates;
}

void Engine::set_moment(const std::string& name, size_t slot, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  impl_->check_whole();
  const auto [group, index] = impl_->find_trained(name);
  impl_->await_update();
  const Range range = group->state_range(index);
  ZS_CHECK(values.numel() == range.size(), "values are ", values.numel(), " elements, and this rank keeps ",
           range.size(), " of '", name, "'");
  const at::Tensor flat = values.detach().reshape({-1});
  group->states().write_moment(range, int(slot), flat);
}

void Engine::await_readers_of_master_weights() {
  impl_->check_whole();
  impl_->executor->end_gathers_ahead();
  for (size_t u = 0; u < impl_->plan.layouts.size(); ++u) impl_->executor->unit(u).await_readers();
}

void Engine::publish_master_weights() {
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  impl.check_whole();
  impl.check_no_change_begun("a method of the optimizer that writes weights");
  impl.executor->end_gathers_ahead();
  impl.ranks.gather.barrier("weights that the optimizer has written");  // afterwards nobody reads parameters any more
  for (ShardedGroup* const group : impl.memory->groups->trained()) group->forget_parameters();
  impl.refresh([](ShardedGroup& group) { group.publish_master(); });
  impl.watch->forget_readings();
  for (size_t u = 0; u < impl.plan.layouts.size(); ++u)
    for (size_t i = 0; i < impl.plan.layouts[u].params.size(); ++i)
      if (impl.plan.layouts[u].params[i].requires_grad) impl.watch->tell_autograd(u, i);
}

void Engine::finish_step(const StepResult& result) {
  impl_->ranks.check_caller();
  impl_->finish_step(result, [&] {
    impl_->update_all([&](ShardedGroup& group) {
      if (!impl_->options.external_optimizer.empty()) group.publish_master();
    });
  });
}

void Engine::Impl::update_all(const Update& update) {
  announce_update();
  refresh(update);
}

void Engine::Impl::finish_step(const StepResult& result, const std::function<void()>& apply) {
  ranks.check_caller();
  // A step without a backward says nothing about overflows.
  if (progress.is_unapplied()) scaler.update(!result.applied);
  if (result.applied) apply();
  if (result.applied && !delayed) tell_autograd_of_update();
  watch->forget_readings();
  held->forget();
  stand_ins.end();
  reducer->end_step();
  dropped.clear();
  passes = 0;
  last_grad_scale = result.loss_scale;
  progress.end_step(result.applied);
  end_cpu_memory_step();
  if (options.observer) options.observer->step_finished(progress.counts().global_steps);
  if (!result.applied) report_skip(result.loss_scale);
}

// With delayed updates it may name more parameters than the pending update writes.
void Engine::Impl::tell_autograd_of_update() {
  for (size_t u = 0; u < plan.layouts.size(); ++u) {
    for (const ShardedGroup& group : memory->groups->of_unit(u)) {
      for (size_t i = 0; group.is_trained() && i < group.num_params(); ++i)
        if (group.param_group(i) >= 0 && (delayed || consensus.has_grad[group.number()][i]))
          watch->tell_autograd(u, group.flat().params[i]);
    }
  }
}

bool Engine::has_pending_gradients() const {
  return impl_->progress.is_unapplied() || impl_->progress.has_open_gradients();
}

void Engine::request_stop() noexcept {
  impl_->stop_requested = true;
}

void Engine::gather(const std::vector<size_t>& units, bool to_modify, std::optional<bool> can_drop) {
  using Purpose = HeldValues::Purpose;
  const WithoutTransforms plain_tensors;
  impl_->ranks.check_caller();
  if (!impl_->in_use) impl_->check_whole();
  if (to_modify && impl_->in_use) publish_update();
  const bool drops = can_drop.value_or(to_modify);
  const Purpose purpose = to_modify ? drops ? Purpose::kModify : Purpose::kModifyForGood
                          : drops   ? Purpose::kReadAndDrop
                                    : Purpose::kRead;
  for (const size_t unit : units) {
    impl_->executor->hold(unit);
    impl_->held->begin(unit, purpose);
    if (purpose == Purpose::kRead) impl_->watch->begin_reading(unit);
  }
}

void Engine::release(const std::vector<size_t>& units, int modify_rank) {
  const WithoutTransforms plain_tensors;
  impl_->ranks.check_caller();
  ZS_CHECK(modify_rank < impl_->ranks.gather.world_size(), "modify_rank is ", modify_rank, ", but there are ",
           impl_->ranks.gather.world_size(), " ranks");
  if (!impl_->in_use) return;  // return_unit() was called in the meantime
  std::vector<std::string> written;
  const std::string refused = modify_rank >= 0 ? impl_->take_moved(units, modify_rank) : "";
  for (const size_t u : units) {
    Unit& unit = impl_->executor->unit(u);
    const auto purpose = modify_rank == kDropWrites ? impl_->held->end_and_restore(u) : impl_->held->end(u);
    if (modify_rank == kDropWrites && purpose == HeldValues::Purpose::kRead) impl_->watch->abandon_reading(u);
    if (modify_rank == kReadOnly) {
      for (std::string& name : impl_->watch->end_reading(u)) written.push_back(std::move(name));
    }
    if (modify_rank >= 0) {
      unit.write_back(modify_rank);
      for (ShardedGroup& group : unit.groups()) group.take_parameters();
    }
    if (modify_rank >= 0) {
      impl_->watch->forget_reading(u);
      impl_->held->accept(u);
    }
    const bool dropped = modify_rank == kDropWrites && unit.placement() == Placement::kSharded;
    for (size_t i = 0; dropped && i < unit.layout().params.size(); ++i) unit.point_back(i);
    if (modify_rank >= 0 || dropped) impl_->watch->accept(u);
    impl_->executor->release(u);
  }
  if (!refused.empty()) throw StateError(refused);
  if (written.empty()) return;
  throw StateError(concat("parameter '", written.front(),
                          "' was written inside zeroshard.gathered(...) without "
                          "modify_rank, which is for reading",
                          written.size() > 1 ? concat(" (and ", written.size() - 1, " more)") : "",
                          ": pass modify_rank=0 on every rank, and what rank 0 writes is taken on all"));
}

void Engine::Impl::refresh(const Update& update) {
  const auto update_unit = [&](size_t unit) {
    for (ShardedGroup& group : memory->groups->of_unit(unit))
      if (group.is_trained()) update(group);
  };
  const auto updates_all = [](const UnitPlacement& unit) {
    return std::any_of(unit.groups.begin(), unit.groups.end(),
                       [](const GroupPlacement& group) { return group.updates_whole(); });
  };
  if (std::any_of(plan.placements.begin(), plan.placements.end(), updates_all)) {  // every rank takes the same branch
    for (size_t unit = 0; unit < plan.layouts.size(); ++unit) update_unit(unit);
    return;
  }
  executor->refresh(reducer->order_of_forward(), update_unit);
  memory->gathers.after_current_stream();
  if (memory->parameters_in_files) memory->read_parameters_ahead(reducer->order_of_forward(), *executor);
  // After this point users may write to replicated parameters, so peers that read them directly must have finished.
  const auto is_replicated = [](const UnitPlacement& unit) { return unit.parameters == Placement::kReplicated; };
  if (options.device.is_cpu() && std::any_of(plan.placements.begin(), plan.placements.end(), is_replicated))
    ranks.gather.barrier("updated parameters");
}

void Engine::Impl::while_a_save_reads() {
  // The thread of a delayed update cannot be interrupted.
  if (delayed && delayed->is_on_thread()) return ranks.reduce.check();
  ranks.check_while_waiting("it waited for a checkpoint to be read");
}

void Engine::Impl::while_an_update_goes_on() {
  ranks.check_while_waiting("it waited for the update of the step before");
}

void Engine::Impl::retire() {
  if (!in_use) return;
  in_use.reset();
  async_saver.reset();  // waits for a running save
  save_locks = DirectoryLocks();
  hooks.clear();
  stand_ins.end();
  stand_ins = GradientStandIns();
  held->forget();
  backward_hooks = BackwardHooks();
  delayed.reset();
  matrices.reset();
  reducer.reset();
  memory->free_states();
}

void Engine::return_unit(size_t unit) {
  impl_->retire();
  impl_->executor->unit(unit).return_tensors();
}

double Engine::loss_scale() const {
  return impl_->options.config.fp16.enabled ? impl_->scaler.scale() : 1;
}
int Engine::skipped_in_a_row() const {
  return impl_->progress.skipped_in_a_row();
}
const Config& Engine::config() const {
  return impl_->options.config;
}
bool Engine::is_replicated(size_t unit) const {
  return impl_->executor->unit(unit).placement() == Placement::kReplicated;
}
size_t Engine::num_units() const {
  return impl_->plan.layouts.size();
}

int64_t Engine::kept_memory() {
  return kept_cpu_memory();
}

std::vector<MemoryLine> Engine::memory() const {
  const Bytes peak = impl_->plan.ledger.peak();
  std::vector<MemoryLine> lines;
  for (size_t i = 0; i < kNumCategories; ++i) {
    const auto category = Category(i);
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kFile}) {
      const int64_t planned = impl_->plan.bytes.at(category, tier), measured = peak.at(category, tier);
      if (planned != 0 || measured != 0)
        lines.push_back({std::string(name_of(category)), std::string(name_of(tier)), planned, measured});
    }
  }
  return lines;
}

}  // namespace zeroshard

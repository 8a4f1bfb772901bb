#include "zeroshard/engine.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "device/cpu_allocator.h"
#include "device/detachable_storage.h"
#include "engine/impl.h"
#include "zeroshard/rank_observer.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

// Returns the options. If they have no observer, sets that of the world.
EngineOptions observed(EngineOptions options, const World& world) {
  if (!options.observer) options.observer = world.observer();
  return options;
}

}  // namespace

Engine::Engine(std::vector<UnitDefinition> units, EngineOptions options, Comm& gather, Comm& reduce, Comm* checkpoint,
               const ReplicaComms& replication)
    : impl_(std::make_unique<Impl>(std::move(units), std::move(options), gather, reduce, checkpoint, replication)) {}

Engine::Engine(std::vector<UnitDefinition> units, EngineOptions options, std::unique_ptr<World> world)
    : world_(std::move(world)),
      impl_(std::make_unique<Impl>(std::move(units), observed(std::move(options), *world_), world_->gather(),
                                   world_->reduce(), world_->checkpoint(), world_->replication())) {}

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
  impl_->pass->discard_failed();
  impl_->writes->order_lent_shards();
  impl_->pass->begin_forward(training);
  if (!training) end_cpu_memory_step();  // an evaluation never calls step(), which makes this call in training
}

std::shared_ptr<KeptTensor> Engine::keep(const at::Tensor& tensor) {
  if (!impl_->memory->activations) return nullptr;
  // Views of parameters stay on the device. They must not be copied, because gathers write to parameters without
  // advancing the version counter, and the keeper would not notice such a change of a tensor.
  if (is_detachable(tensor)) {
    for (size_t u = 0; u < impl_->executor->size(); ++u)
      if (impl_->executor->unit(u).owns(tensor)) return nullptr;
  }
  return impl_->memory->activations->keep(tensor);
}

bool Engine::keeps_tensors() const {
  return impl_->memory->activations != nullptr;
}

void Engine::pre_forward(size_t unit) {
  impl_->check_in_use();
  const WithoutTransforms plain_tensors;
  impl_->pass->renew_hooks(unit);  // needed if the user has cast the module
  impl_->executor->pre_forward(unit, zeroshard::in_backward());
}

bool Engine::post_forward(size_t unit, const std::vector<at::Tensor>& outputs) {
  impl_->check_in_use();
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad() || output.is_leaf()) continue;  // it has no backward
    impl_->pass->add_output(unit, output);
  }
  const WithoutTransforms plain_tensors;
  const Unit& own = impl_->executor->unit(unit);
  // If an output is a view of the unit's parameters, resharding the unit would free the memory of this output. The unit
  // then stays unsharded until the caller calls post_forward() again.
  const bool is_own = own.placement() == Placement::kSharded &&
                      std::any_of(outputs.begin(), outputs.end(), [&](const auto& output) { return own.owns(output); });
  if (!is_own) impl_->executor->post_forward(unit, zeroshard::in_backward());
  return is_own;
}

bool Engine::is_in_backward(size_t unit) const {
  return impl_->executor->is_in_backward(unit);
}

void Engine::end_unit_forward(size_t unit, const std::vector<at::Tensor>& outputs) {
  if (!post_forward(unit, outputs)) return;
  throw StateError(
      concat("unit '", impl_->plan.layouts[unit].name,
             "' returned a parameter of its own or a view of one, but its parameters are sharded again when "
             "it ends. Return a copy, or name in zeroshard.unit_classes a class of module that contains the "
             "code that uses the parameter"));
}

StepResult Engine::prepare_step(const std::vector<ParamGroupOptions>& groups) {
  Impl& impl = *impl_;
  impl.check_whole();
  impl.writes->check_no_change_begun("step()");
  Pass& pass = *impl.pass;
  pass.discard_failed();
  pass.gradients().take_dropped();
  const bool is_unsynced = pass.progress().is_unsynced();  // gradients of a pass under no_sync are not reduced yet
  if (is_unsynced) begin_backward();
  // See Note [Backward passes that are none of the engine's].
  const bool has_other = pass.told_reducer_before_first_gradient() && pass.progress().is_unapplied();
  // Gradients are still open if end_backward() was not called after begin_backward().
  const bool ends_pass = is_unsynced || pass.progress().has_open_gradients();
  if (ends_pass || (has_other && impl.executor->is_in_backward())) {
    end_backward();
  } else if (has_other) {  // a later forward has already ended the backward of the units
    pass.end_only_reductions();
  }
  return impl.step->prepare(groups, impl.saves->failed());
}

StepResult Engine::step(const std::vector<ParamGroupOptions>& groups) {
  Impl& impl = *impl_;
  Update& update = *impl.update;
  const StepResult result = prepare_step(groups);
  if (result.applied) impl.optimizer.check(impl.memory->groups->trained(), groups);
  const Update::Inputs inputs = impl.step->update_inputs(groups);
  update.publish();  // the update of the step before
  try {
    if (result.applied && !update.is_delayed()) update.announce_gradients(inputs);
    impl.step->finish(result, [&] { update.apply(inputs); });
  } catch (...) {
    if (!update.is_delayed()) update.end_gradients();
    throw;
  }
  return result;
}

StepResult Engine::step() {
  return step(impl_->options.param_groups);
}

std::vector<OptimizerSlice> Engine::slices() {
  const Impl& impl = *impl_;
  impl.check_in_use();
  std::vector<OptimizerSlice> result;
  impl.update->await();
  for (const ShardedGroup* const group : impl.memory->groups->trained()) {
    // The external optimizer may write to the master weights and not to the parameters. Unchanged parameters would then
    // no longer show that they match the master weights.
    if (!impl.options.external_optimizer.empty()) group->forget_parameters();
    for (const ParamSlice& slice : zeroshard::slices(*group)) {
      const ParamSpec& param = group->param(slice.index);
      OptimizerSlice out{
          param.name(), group->param_group(slice.index), slice.master, false, {}, slice.moments, param.shape,
          slice.begin};
      out.has_grad = impl.step->has_grad(*group, slice.index);
      // The gradient is converted where the update runs, because a device may have no memory to spare.
      if (out.has_grad) {
        const at::Tensor grad = impl.bucket_of(*group).reduced().values().part(group->state_range(slice.index));
        out.grad = grad.to(slice.master.device()).to(at::kFloat).mul(impl.step->grad_scale());
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
  group->update_counts()[index] = updates;
}

void Engine::set_moment(const std::string& name, size_t slot, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  impl_->check_whole();
  const auto [group, index] = impl_->find_trained(name);
  impl_->update->await();
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
  impl.writes->check_no_change_begun("a method of the optimizer that writes weights");
  impl.executor->end_gathers_ahead();
  impl.ranks.gather.barrier("weights that the optimizer has written");  // afterwards no gather reads shards
  for (ShardedGroup* const group : impl.memory->groups->trained()) group->forget_parameters();
  impl.update->update_and_refresh([](ShardedGroup& group) { group.copy_master_to_parameters(); });
  impl.writes->forget_readings();
  for (const ParamPlace place : impl.executor->params())
    if (impl.executor->spec(place).requires_grad) impl.writes->tell_autograd(place);
}

void Engine::finish_step(const StepResult& result) {
  impl_->check_in_use();
  impl_->step->finish(result, [&] {
    impl_->update->announce_states(impl_->step->update_inputs({}));
    impl_->update->update_and_refresh([&](ShardedGroup& group) {
      if (!impl_->options.external_optimizer.empty()) group.copy_master_to_parameters();
    });
  });
}

bool Engine::has_pending_gradients() const {
  return impl_->pass->progress().is_unapplied() || impl_->pass->progress().has_open_gradients();
}

void Engine::publish_update(bool ends) {
  Impl& impl = *impl_;
  if (!impl.update->is_pending()) return;
  impl.check_whole();
  if (!ends && on_any_rank(impl.ranks.all, has_pending_gradients(), "pending gradients"))
    throw StateError(
        "a save, an export or zeroshard.gathered(..., modify_rank=...) was called between the micro-batches of a step. "
        "With zeroshard.offload.delayed_update, this call would apply the last step's update, and the gradients of "
        "the step would be of two sets of weights. Call it after step()");
  impl.writes->check_late();
  impl.publish_outside_of_steps();
}

void Engine::request_stop() noexcept {
  impl_->step->request_stop();
}

void Engine::gather(const std::vector<size_t>& units, bool to_modify, std::optional<bool> can_drop) {
  using Purpose = HeldValues::Purpose;
  const WithoutTransforms plain_tensors;
  impl_->check_in_use();
  if (to_modify) publish_update();
  const bool drops = can_drop.value_or(to_modify);
  const Purpose purpose = to_modify ? drops ? Purpose::kModify : Purpose::kModifyForGood
                          : drops   ? Purpose::kReadAndDrop
                                    : Purpose::kRead;
  impl_->writes->gather(units, purpose);
}

void Engine::release(const std::vector<size_t>& units, int modify_rank) {
  const WithoutTransforms plain_tensors;
  impl_->ranks.check_caller();
  ZS_CHECK(modify_rank < impl_->ranks.all.world_size(), "modify_rank is ", modify_rank, ", but there are ",
           impl_->ranks.all.world_size(), " ranks");
  if (impl_->in_use()) impl_->writes->release(units, modify_rank);  // else return_unit() was called in the meantime
}

void Engine::Impl::check_in_use() const {
  ranks.check_caller();
  if (!in_use())
    throw StateError("this engine has returned its parameters, and cannot be used any more: make another one");
}

void Engine::Impl::check_whole() const {
  check_in_use();
  saves->check_not_half_loaded();
}

// Publishes a pending update outside of a step. First ends gathers that a forward without a backward has left, because
// publishing writes to the shards. Afterwards the backward of an earlier forward throws, because it would use other
// parameters.
void Engine::Impl::publish_outside_of_steps() {
  for (size_t unit = 0; unit < plan.layouts.size(); ++unit) executor->end_gather(unit);
  update->publish();
  pass->refuse_earlier_forwards();
}

void Engine::Impl::publish_before_load(bool has_gradients) {
  if (!update->is_pending()) return;
  if (on_any_rank(ranks.all, has_gradients, "pending gradients")) return;  // then the load will be refused
  publish_outside_of_steps();
}

void Engine::Impl::retire() {
  if (!in_use()) return;
  saves->retire();
  pass->remove_hooks();
  writes->forget_held();
  update->retire();
  reducer.reset();
  memory->free_states();
}

void Engine::return_unit(size_t unit) {
  impl_->retire();
  impl_->executor->unit(unit).return_tensors();
}

double Engine::loss_scale() const {
  return impl_->pass->scaler().scale();
}
int Engine::skipped_in_a_row() const {
  return impl_->pass->progress().skipped_in_a_row();
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
    for (const Tier tier : kTiers) {
      const int64_t planned = impl_->plan.bytes.at(category, tier), measured = peak.at(category, tier);
      if (planned != 0 || measured != 0)
        lines.push_back({std::string(name_of(category)), std::string(name_of(tier)), planned, measured});
    }
  }
  return lines;
}

}  // namespace zeroshard

#include "engine/update.h"

#include <algorithm>
#include <utility>

#include "layout/matrix_owners.h"

namespace zeroshard {

Update::Update(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks, Memory& memory, Executor& executor,
               Reducer& reducer, UserWrites& writes, const ShardedOptimizer& optimizer)
    : plan_(plan),
      ranks_(ranks),
      memory_(memory),
      executor_(executor),
      reducer_(reducer),
      writes_(writes),
      optimizer_(optimizer) {
  const bool pin = options.config.offload_optimizer.pin_memory;
  if (plan.options.matrix_dtype && plan.matrix_ring.slots > 0) {
    std::vector<ShardedGroup*> of_matrices;
    for (ShardedGroup* const group : memory.groups->trained())
      if (group->flat().is_matrix) of_matrices.push_back(group);
    matrices_ = std::make_unique<MatrixUpdate>(
        matrix_batches(plan.layouts, plan.placements, ranks.states.world_size()), std::move(of_matrices), optimizer,
        MatrixUpdate::Options{options.optimizer, options.device, *plan.options.matrix_dtype, plan.matrix_ring},
        ranks.states, plan.ledger);
  }
  if (plan.options.delayed_update)
    delayed_ = std::make_unique<DelayedUpdate>(
        memory.groups->trained(), optimizer, options.device, pin, plan.ledger,
        [&ranks] { ranks.check_while_waiting("it waited for the update of the step before"); });
  const RingClass& fetch = plan.gradient_fetch;
  if (fetch.units == 0) return;
  const Mover::Slots slots{.bytes = fetch.slot_bytes, .count = fetch.slots, .piece_numel = kFetchedNumel, .pin = pin};
  gradient_fetch_ = std::make_unique<GradientFetch>(options.device, slots, plan.ledger);
}

void Update::announce_states(const Inputs& inputs) {
  if (!memory_.has_files()) return;
  std::vector<ChunkStore::Announced> parameters;
  for (const size_t unit : reducer_.order_of_forward()) {
    for (ShardedGroup& group : memory_.groups->of_unit(unit)) {
      if (!group.is_trained()) continue;
      for (const Range range : ShardedOptimizer::updated_ranges(group, inputs.of(group))) {
        group.states().will_need(range);
        if (group.has_master()) continue;  // the update overwrites the parameters without reading them
        if (const auto place = group.parameters().place_in_files(range)) parameters.push_back(*place);
      }
    }
  }
  if (memory_.parameters_in_files) memory_.parameters_in_files->will_need_next(parameters);
}

void Update::announce_gradients(const Inputs& inputs) {
  if (!gradient_fetch_ && !memory_.gradients_in_files) return;
  std::vector<ChunkStore::Announced> in_files;
  for (const size_t unit : reducer_.order_of_forward()) {
    for (const ShardedGroup& group : memory_.groups->of_unit(unit)) {
      if (!group.is_trained()) continue;
      const GradBucket& bucket = reducer_.buckets()[group.number()];
      const Range fetched = group.place().fetched(group.layout());
      for (const Range range : ShardedOptimizer::updated_ranges(group, inputs.of(group))) {
        if (const auto place = bucket.reduced().values().place_in_files(range)) in_files.push_back(*place);
        if (fetched.size() > 0) gradient_fetch_->will_need(bucket.reduced().tensor(), intersect(range, fetched));
      }
    }
  }
  if (memory_.gradients_in_files) memory_.gradients_in_files->will_need_next(in_files);
}

void Update::apply(const Inputs& inputs) {
  if (delayed_) return begin_delayed(inputs);
  GradientFetch* const fetch = gradient_fetch_.get();
  const auto gradients = [&](const ShardedGroup& group) {
    return UpdateGradients{reducer_.buckets()[group.number()].reduced().values(), fetch};
  };
  const auto has_grad = [&](const ShardedGroup& group) -> const std::vector<bool>& { return inputs.of(group); };
  if (matrices_) matrices_->update({gradients, inputs.options, has_grad, inputs.grad_scale});
  announce_states(inputs);
  update_and_refresh([&](ShardedGroup& group) {
    if (!group.flat().is_matrix)  // matrices_ has already updated groups of matrices
      optimizer_.update(group, gradients(group), inputs.options, inputs.of(group), inputs.grad_scale);
    for (size_t i = 0; memory_.coded_refresh && i < group.num_params(); ++i)
      if (!inputs.of(group)[i] || group.param_group(i) < 0) return undo_rounding(group);
  });
}

// Copies the master weights of a group to its parameters if the parameters are sent as 8-bit codes, as those of
// kSharded units can be. Each refresh rounds all parameters of such a group, by scales that depend on neighbouring
// elements. Without this copy, parameters that updates leave out would be rounded again and again, and would drift away
// from their master weights.
void Update::undo_rounding(ShardedGroup& group) const {
  if (memory_.coded_refresh && !group.users_may_write()) group.copy_master_to_parameters();
}

void Update::end_gradients() {
  if (gradient_fetch_) gradient_fetch_->end();
}

void Update::update_and_refresh(const UpdateGroup& update) {
  const auto update_unit = [&](size_t unit) {
    for (ShardedGroup& group : memory_.groups->of_unit(unit))
      if (group.is_trained()) update(group);
  };
  const auto updates_all = [](const UnitPlacement& unit) {
    return std::any_of(unit.groups.begin(), unit.groups.end(),
                       [](const GroupPlacement& group) { return group.updates_whole(); });
  };
  if (std::any_of(plan_.placements.begin(), plan_.placements.end(), updates_all)) {  // every rank takes the same branch
    for (size_t unit = 0; unit < plan_.layouts.size(); ++unit) update_unit(unit);
    return;
  }
  executor_.update_and_refresh(reducer_.order_of_forward(), update_unit);
  if (memory_.coded_refresh) memory_.gathers.stream.join();  // this stream writes the decoded parameters
  memory_.gathers.after_current_stream();
  if (memory_.parameters_in_files) memory_.read_parameters_ahead(reducer_.order_of_forward(), executor_);
  // After this point users may write to replicated parameters. On the CPU the other ranks read these parameters
  // directly for a gather, so the ranks wait until these reads have ended.
  const auto is_replicated = [](const UnitPlacement& unit) { return unit.parameters == Placement::kReplicated; };
  if (ranks_.device.is_cpu() && std::any_of(plan_.placements.begin(), plan_.placements.end(), is_replicated))
    ranks_.gather.barrier("updated parameters");
  if (ranks_.device.is_cpu() && ranks_.num_parts() > 1) ranks_.replicas->barrier("updated parameters");
}

void Update::tell_autograd(const std::vector<std::vector<bool>>* has_grad) {
  for (size_t u = 0; u < executor_.size(); ++u) {
    for (const ShardedGroup& group : memory_.groups->of_unit(u)) {
      for (size_t i = 0; group.is_trained() && i < group.num_params(); ++i)
        if (group.param_group(i) >= 0 && (has_grad == nullptr || (*has_grad)[group.number()][i]))
          writes_.tell_autograd({u, group.flat().params[i]});
    }
  }
}

void Update::begin_delayed(const Inputs& inputs) {
  DelayedUpdate::Inputs late{{}, inputs.options, inputs.grad_scale};
  // The units are updated in the order in which the next backward makes their gradients, because new gradients of a
  // unit must wait until the update has used the present ones.
  const std::vector<size_t>& order = reducer_.order_of_forward();
  for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
    for (ShardedGroup& group : memory_.groups->of_unit(*unit)) {
      if (!group.is_trained()) continue;
      const GradBucket& bucket = reducer_.buckets()[group.number()];
      late.parts.push_back({&group, bucket.reduced().tensor(), bucket.reduced().read(), inputs.of(group)});
    }
  }
  delayed_->begin(std::move(late));
}

void Update::await() const {
  if (!delayed_) return;
  ranks_.check_caller();
  delayed_->await();
}

void Update::publish() {
  if (!is_pending()) return;
  delayed_->await();
  update_and_refresh([this](ShardedGroup& group) {
    delayed_->copy_to_device(group);
    undo_rounding(group);
  });
  writes_.remember_open_parameters();
  tell_autograd();
  writes_.forget_readings();
  delayed_->end();
}

void Update::retire() {
  delayed_.reset();
  matrices_.reset();
  gradient_fetch_.reset();
}

}  // namespace zeroshard

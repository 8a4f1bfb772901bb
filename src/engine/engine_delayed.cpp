#include <algorithm>
#include <utility>
#include <vector>

#include "engine/impl.h"
#include "zeroshard/error.h"

// See Note [Delayed updates].
namespace zeroshard {

void Engine::Impl::begin_delayed(const std::vector<ParamGroupOptions>& options_of_groups) {
  DelayedUpdate::Step step{{}, options_of_groups, grad_scale};
  // Updates in the order in which backward makes the next gradients, because these wait for the updates.
  const std::vector<size_t>& order = reducer->order_of_forward();
  for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
    for (ShardedGroup& group : memory->groups->of_unit(*unit)) {
      if (!group.is_trained()) continue;
      const GradBucket& bucket = bucket_of(group);
      step.parts.push_back({&group, bucket.grads(), bucket.read(), consensus.has_grad[group.number()]});
    }
  }
  delayed->begin(std::move(step));
}

void Engine::Impl::await_update() const {
  if (!delayed) return;
  ranks.check_caller();
  delayed->await();
}

void Engine::Impl::remember_open_parameters() {
  has_lost_sums = false;
  for (ShardedGroup* const group : memory->groups->trained()) remember_open_parameters(*group);
}

void Engine::Impl::remember_open_parameters(ShardedGroup& group) {
  if (!group.is_open()) return;
  group.await_copies();
  group.remember_parameters();
  group.await_copies();  // after this, users may write
}

void Engine::Impl::publish_update() {
  if (!has_pending_update()) return;
  delayed->await();
  refresh([this](ShardedGroup& group) { delayed->publish(group); });
  remember_open_parameters();
  tell_autograd_of_update();
  watch->forget_readings();
  delayed->end();
}

void Engine::publish_update(bool ends) {
  Impl& impl = *impl_;
  if (!impl.has_pending_update()) return;
  impl.check_whole();
  if (!ends && agree_on_flags(impl.ranks.reduce, {has_pending_gradients() ? 1 : 0}).front() != 0)
    throw StateError(
        "zeroshard.offload.delayed_update: the last step's update cannot come to the parameters between the "
        "micro-batches of a step, whose gradients would be of two sets of weights. Save, export and call "
        "zeroshard.gathered(..., modify_rank=...) after step()");
  impl.check_late_writes();
  impl.publish_outside_of_steps();
}

// Gathers that a forward without a backward has left must end first.
void Engine::Impl::publish_outside_of_steps() {
  for (size_t unit = 0; unit < plan.layouts.size(); ++unit) executor->end_gather(unit);
  publish_update();
  ++publishes;
}

void Engine::Impl::publish_before_load(bool has_gradients) {
  if (!has_pending_update()) return;
  if (agree_on_flags(ranks.reduce, {has_gradients ? 1 : 0}).front() != 0) return;  // the load will be refused
  publish_outside_of_steps();
}

void Engine::Impl::refuse_other_parameters() {
  throw StateError(
      "between this forward pass and its backward() the last step's update came to the parameters, with "
      "zeroshard.offload.delayed_update: backward() would use others than the forward pass. Saves, exports, loads and "
      "zeroshard.gathered(..., modify_rank=...) publish it: call them before the forward pass or after step(), and "
      "begin this step again");
}

bool Engine::Impl::wrote_late() {
  if (!has_pending_update()) return false;
  if (has_lost_sums) return true;
  for (size_t u = 0; u < executor->size(); ++u) {
    Unit& unit = executor->unit(u);
    unit.take_written();
    if (unit.placement() == Placement::kSharded) continue;  // no parameter of it is whole between steps
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i)
      if (plan.layouts[u].params[i].requires_grad && watch->is_written(u, i)) return true;
  }
  return std::ranges::any_of(memory->groups->trained(), [](const ShardedGroup* group) { return group->was_written(); });
}

void Engine::Impl::check_late_writes() {
  if (!has_pending_update()) return;
  if (agree_on_flags(ranks.reduce, {wrote_late() ? 1 : 0}).front() == 0) return;
  for (size_t u = 0; u < executor->size(); ++u) {
    Unit& unit = executor->unit(u);
    if (unit.placement() == Placement::kSharded) continue;
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i)
      if (unit.is_moved(i) && plan.layouts[u].params[i].requires_grad) unit.point_back(i);
    watch->accept(u);
  }
  remember_open_parameters();
  throw StateError(
      "parameters were written between two steps, on this rank or another, with zeroshard.offload.delayed_update: the "
      "update of the step before overwrites them, and what was written is lost. Write inside of "
      "zeroshard.gathered(..., modify_rank=0), which brings that update to the parameters first");
}

}  // namespace zeroshard

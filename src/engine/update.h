#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine_plan.h"
#include "engine/executor.h"
#include "engine/memory.h"
#include "engine/ranks.h"
#include "engine/user_writes.h"
#include "group/gradient_fetch.h"
#include "optim/delayed_update.h"
#include "optim/matrix_update.h"
#include "optim/sharded_optimizer.h"
#include "reduce/reducer.h"

namespace zeroshard {

// Updates the groups of an engine and sends the new parameters to all ranks.
//
// Note [Delayed updates]
// With zeroshard.offload.delayed_update, a step first publishes the update of the step before, which means that all
// ranks get the new parameters. It then hands its own update to a thread. While this update is pending, the states are
// newer than the parameters. Code that reads states waits for the thread. Code that saves, exports, loads or lets users
// write to parameters first publishes the update. (An export between the micro-batches of a step does not.) Code that
// reads parameters gets the values from before the update, with which the device computes.
class Update {
 public:
  // All must outlive it. Collective, because it allocates.
  Update(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks, Memory& memory, Executor& executor,
         Reducer& reducer, UserWrites& writes, const ShardedOptimizer& optimizer);

  // The values of one step. They must outlive the calls to which they are passed.
  struct Inputs {
    const std::vector<ParamGroupOptions>& options;
    const std::vector<std::vector<bool>>& has_grad;  // Consensus::has_grad
    float grad_scale;                                // see ShardedOptimizer::update()
    const std::vector<bool>& of(const ShardedGroup& group) const { return has_grad[group.number()]; }
  };
  // Starts to prefetch the gradients that the update will read from files, or copy from a device to the host. Does
  // nothing for gradients that the update reads from where they are.
  void announce_gradients(const Inputs& inputs);
  // Cancels the copies to the host that announce_gradients() has planned, and waits for those that have begun. New
  // gradients may arrive only after that. A complete apply() has used all copies, so this function is only needed after
  // an error.
  void end_gradients();
  // Updates all groups and sends the new parameters to all ranks. Collective. If updates are delayed, only starts the
  // update in a thread, and publish() sends the parameters later.
  void apply(const Inputs& inputs);
  // Starts to prefetch the states and parameters that the next update_and_refresh() needs from files.
  void announce_states(const Inputs& inputs);
  // Lets `update` write each trained group, and sends the new values to all ranks. Sends nothing if every rank updates
  // all parameters (stage 0). Collective. Between the last gather and the call, the ranks must have waited for one
  // another, for example in agree_on_step(), so that no rank still reads shards.
  using UpdateGroup = std::function<void(ShardedGroup&)>;
  void update_and_refresh(const UpdateGroup& update);
  // Advances autograd's version counters of the parameters that were updated. These are the parameters that an
  // optimizer updates and that have a gradient in `has_grad`. If `has_grad` is null, advances the counters of all
  // parameters that an optimizer updates.
  void tell_autograd(const std::vector<std::vector<bool>>* has_grad = nullptr);

  bool is_delayed() const { return delayed_ != nullptr; }
  bool is_pending() const { return delayed_ && delayed_->is_pending(); }
  bool is_on_thread() const { return delayed_ && delayed_->is_on_thread(); }
  void await() const;
  // Sends the new parameters of the pending update, if there is one, to all ranks. They overwrite what users have
  // written to parameters. Collective.
  void publish();
  // If updates are delayed, replaces the new parameters of the pending update at these positions of the group by
  // `values`. await() must have returned.
  void replace(const ShardedGroup& group, Range positions, const at::Tensor& values) {
    if (delayed_) delayed_->replace(group, positions, values);
  }
  // Frees the delayed update, with its thread, and the buffers of whole matrices and of copied gradients. Nothing may
  // be updated any more.
  void retire();

 private:
  void begin_delayed(const Inputs& inputs);
  void undo_rounding(ShardedGroup& group) const;

  const EnginePlan& plan_;
  const Ranks& ranks_;
  Memory& memory_;
  Executor& executor_;
  Reducer& reducer_;
  UserWrites& writes_;
  const ShardedOptimizer& optimizer_;
  std::unique_ptr<GradientFetch> gradient_fetch_;  // null if updates copy no gradients from a device to the host
  std::unique_ptr<MatrixUpdate> matrices_;         // null if no group is updated as whole matrices
  std::unique_ptr<DelayedUpdate> delayed_;         // null if updates are not delayed
};

}  // namespace zeroshard

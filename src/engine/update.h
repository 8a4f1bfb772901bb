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
// With zeroshard.offload.delayed_update, a step hands its update to a thread, and publishes the update of the step
// before. Until then states and parameters belong to different steps. Code that reads states waits for the thread. Code
// that saves, exports, loads or lets users write to parameters publishes first. Code that reads parameters sees those
// that the device computes with.
class Update {
 public:
  // All must outlive it. Collective, because it allocates.
  Update(const EngineOptions& options, EnginePlan& plan, const Ranks& ranks, Memory& memory, Executor& executor,
         Reducer& reducer, UserWrites& writes, const ShardedOptimizer& optimizer);

  // The values of one step. They must outlive the update.
  struct Step {
    const std::vector<ParamGroupOptions>& options;
    const std::vector<std::vector<bool>>& has_grad;  // Consensus::has_grad
    float grad_scale;                                // see ShardedOptimizer::update()
    const std::vector<bool>& of(const ShardedGroup& group) const { return has_grad[group.number()]; }
  };
  // Starts to prefetch the gradients for the update, if they have to be fetched.
  void announce_gradients(const Step& step);
  // Copies of gradients must end before the next gradients arrive. apply() ends them; this does it after an error.
  void end_gradients();
  // Updates all groups, or begins to if updates are delayed.
  void apply(const Step& step);
  // Lets `update` write each trained group, then sends the new values to all ranks. Collective.
  using UpdateGroup = std::function<void(ShardedGroup&)>;
  void refresh(const UpdateGroup& update);
  // Starts to prefetch the states that the update needs, then does the same.
  void refresh_with_states(const Step& step, const UpdateGroup& update);
  // Tells autograd's version counters that parameters were updated: those with a gradient, or else all that are
  // trained.
  void tell_autograd(const std::vector<std::vector<bool>>* has_grad = nullptr);

  bool is_delayed() const { return delayed_ != nullptr; }
  bool is_pending() const { return delayed_ && delayed_->is_pending(); }
  bool is_on_thread() const { return delayed_ && delayed_->is_on_thread(); }
  void await() const;
  // Sends the pending update, if there is one, to all ranks. It overwrites writes of users. Collective.
  void publish();
  // Replaces new values of the pending update.
  void replace(const ShardedGroup& group, Range positions, const at::Tensor& values) {
    if (delayed_) delayed_->replace(group, positions, values);
  }
  // After that, nothing is updated any more.
  void retire();

 private:
  void begin_delayed(const Step& step);
  void announce(const Step& step);
  void undo_rounding(ShardedGroup& group) const;

  const EnginePlan& plan_;
  const Ranks& ranks_;
  Memory& memory_;
  Executor& executor_;
  Reducer& reducer_;
  UserWrites& writes_;
  const ShardedOptimizer& optimizer_;
  std::unique_ptr<GradientFetch> gradient_fetch_;  // null if the update finds gradients in its own memory
  std::unique_ptr<MatrixUpdate> matrices_;         // null if the optimizer needs no whole matrices
  std::unique_ptr<DelayedUpdate> delayed_;         // null if a step updates at once
};

}  // namespace zeroshard

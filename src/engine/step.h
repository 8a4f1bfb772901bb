#pragma once
#include <atomic>
#include <functional>
#include <vector>

#include "engine/consensus.h"
#include "engine/pass.h"
#include "engine/update.h"
#include "engine/user_writes.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Ends a step after its passes: lets the ranks agree on it, and then applies or skips it.
class Step {
 public:
  // All must outlive it.
  Step(const EngineOptions& options, const Ranks& ranks, Memory& memory, Executor& executor, Reducer& reducer,
       Pass& pass, UserWrites& writes, Update& update)
      : options_(options),
        ranks_(ranks),
        memory_(memory),
        executor_(executor),
        reducer_(reducer),
        pass_(pass),
        writes_(writes),
        update_(update) {}

  // See Engine::prepare_step(). `save_failed` says whether a background save of this rank has failed.
  StepResult prepare(const std::vector<ParamGroupOptions>& groups, bool save_failed);
  // Ends a step. Calls `apply`, which writes the new parameters, unless result.applied is false. Throws StateError if
  // config.max_skipped_steps steps in a row were skipped.
  void finish(const StepResult& result, const std::function<void()>& apply);
  // Makes StepResult::stop true on all ranks from the next step on. Any thread may call it.
  void request_stop() { stop_requested_ = true; }

  // Returns what an update needs of the last prepare(), with `groups`. The result refers to `groups` and to this
  // object.
  Update::Inputs update_inputs(const std::vector<ParamGroupOptions>& groups) const {
    return {groups, consensus_.has_grad, grad_scale_};
  }
  float grad_scale() const { return grad_scale_; }
  // Returns whether some rank had a gradient of the parameter at the last prepare().
  bool has_grad(const ShardedGroup& group, size_t index) const {
    return !consensus_.has_grad.empty() && consensus_.has_grad[group.number()][index];
  }

 private:
  uint32_t hash(const std::vector<ParamGroupOptions>& groups) const;
  void check(const std::vector<ParamGroupOptions>& groups) const;
  void compare_replicated_units();
  void report_skip(double scale);

  const EngineOptions& options_;
  const Ranks& ranks_;
  Memory& memory_;
  Executor& executor_;
  Reducer& reducer_;
  Pass& pass_;
  UserWrites& writes_;
  Update& update_;
  Consensus consensus_;  // result of the last prepare()
  float grad_scale_ = 1;
  // Steps since compare_replicated_units() last compared parameters. Progress::global_steps cannot be used, because
  // scripts may set it.
  int64_t uncompared_steps_ = 0;
  std::atomic<bool> stop_requested_ = false;
};

}  // namespace zeroshard

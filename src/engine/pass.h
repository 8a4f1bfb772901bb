#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/executor.h"
#include "engine/ranks.h"
#include "engine/step_progress.h"
#include "engine/user_gradients.h"
#include "hooks/autograd_hooks.h"
#include "precision/loss_scaler.h"
#include "reduce/reducer.h"
#include "zeroshard/engine.h"
#include "zeroshard/error.h"

namespace zeroshard {

// The forward and backward passes of a step: the hooks that see them, and how a pass ends in the same way on all ranks.
//
// Note [Backward passes that are none of the engine's]
// torch.autograd.grad() of a loss for an input runs the hooks of units, and gives none of their parameters a gradient.
// Such a pass must launch no reduction. Otherwise gradients that were already reduced for the step would be summed
// again, and other ranks may not run such a pass. Only its first gradient shows that a pass is a loss.backward(). So
// the ends of units before the first gradient are only remembered, and they count when this gradient arrives. If units
// are sharded, ends count at once, because other ranks may wait for them. Every rank must run the pass then, because
// the pass gathers parameters. Engine::prepare_step() ends it.
class Pass {
 public:
  // All must outlive it.
  Pass(const Config& config, const Ranks& ranks, Executor& executor, Reducer& reducer);

  void install_hooks(const std::vector<UnitDefinition>& units);
  void renew_hooks(size_t unit) const;
  // Adds a hook to an output of the unit. It tells the executor when the gradient of this output is known.
  void add_output(size_t unit, const at::Tensor& output);
  // Also forgets the gradients of users.
  void remove_hooks();
  // Makes the backward of every earlier forward throw StateError, because parameters have changed outside of a step.
  void end_forwards() { ++hooks_.publishes; }

  void begin_forward(bool training);
  void begin(bool sync);
  // Ends a pass that has not failed on this rank. Throws StateError if it has failed on another rank. Collective.
  void end() { throw_discarded(end("")); }
  // Ends a pass. `failure` says why it failed on this rank; empty if it did not. If it failed on some rank, discards
  // all gradients since the last step, and returns on every rank the number and the failure of the first such rank.
  // Otherwise returns "". Collective.
  std::string end(const std::string& failure);
  // Like end(), but only ends the reductions, and not the executor's backward.
  void end_launched() { throw_discarded(end_reductions("")); }
  // Call it when a unit's backward has ended.
  void end_unit(size_t unit);
  // If the last loss.backward() has failed, discards its gradients and all earlier ones of the step on all ranks. In
  // this case it is collective.
  void discard_failed();
  void zero_grad();
  void end_step(double loss_scale);

  // Throws StateError if the gradient of `param` may not be reduced yet: after a backward under no_sync, within a
  // backward pass, after a loss.backward() that failed, and if has_counted_other() is true.
  void check_reduced(const ParamSpec& param) const;
  // Returns whether the ends of a pass without gradients have counted: see Note [Backward passes that are none of the
  // engine's].
  bool has_counted_other() const { return other_.has_counted; }
  // Texts of the last CommError and IoError that a hook of this pass threw; "" if none.
  struct Errors {
    std::string comm, io;
  };
  const Errors& errors() const { return errors_; }
  StepProgress& progress() { return progress_; }
  LossScaler& scaler() { return scaler_; }
  UserGradients& gradients() { return gradients_; }
  // Note [Gradients after the step]
  // Every bucket keeps the memory of its reduced gradients for the whole run, and an update only reads it. So the
  // gradients of the last step can be read without a copy until new ones arrive. last_grad_scale() is the loss scale of
  // these gradients. It is empty as soon as they can no longer be read.
  const std::optional<double>& last_grad_scale() const { return last_grad_scale_; }

 private:
  struct Hooks {
    std::vector<std::vector<GradHook>> of_units;
    BackwardHooks of_outputs;
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);  // null after remove_hooks(); backward hooks check it
    int64_t publishes = 0;                                       // number of delayed updates published outside of steps
  };
  // A pass that may be none of the engine's.
  struct OtherPass {
    std::vector<size_t> ended;  // units that have ended before the first gradient
    bool has_counted = false;
  };
  // A loss.backward() that the engine did not begin, from its first gradient on.
  struct PlainPass {
    std::weak_ptr<void> pass;  // expires when the pass ends or fails
    double divisor = 1;        // each gradient is divided by it
  };

  // Runs the code of an autograd hook for a unit. Keeps the text of an error, because autograd loses its class.
  template <typename Call>
  void in_hook(std::string_view doing, size_t unit, const Call& call);
  void pre_backward(size_t unit, int64_t output, int64_t publishes_at_forward);
  void before_gradient();
  void add_gradient(size_t unit, size_t param, const at::Tensor& grad);
  // Throws `error`. If ranks disagree, first adds to its text what this rank was about to do (`doing`) and the likely
  // cause.
  [[noreturn]] void explain_backward(const CommError& error, const std::string& doing);
  // Second half of end(): runs after every unit's backward has ended.
  std::string end_reductions(const std::string& failure);
  void begin_plain_pass();
  void end_plain_pass();
  void discard();
  static void throw_discarded(const std::string& failure);

  const Ranks& ranks_;
  Executor& executor_;
  Reducer& reducer_;
  LossScaler scaler_;
  StepProgress progress_;
  UserGradients gradients_;
  Hooks hooks_;
  OtherPass other_;
  PlainPass plain_;
  Errors errors_;
  std::optional<double> last_grad_scale_;
  bool warned_of_discards_ = false;
};

}  // namespace zeroshard

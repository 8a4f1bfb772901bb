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

// Runs the forward and backward passes of an engine, one after another. It owns the autograd hooks, which tell the
// executor and the reducer what a pass does, and ends each pass in the same way on all ranks. It also owns what passes
// and steps share: the loss scale, the counts of steps, and the gradients that users drop or assign.
//
// Note [Backward passes that are none of the engine's]
// torch.autograd.grad() of a loss for an input runs the hooks of units, but gives none of their parameters a gradient.
// Such a pass must launch no reduction. A reduction would sum gradients again that were already reduced for the step,
// and would wait for other ranks, which perhaps do not run such a pass. A loss.backward() without begin() runs the same
// hooks, and only its first gradient tells it from such a pass. So if the backward of a unit ends in a pass without
// begin() before the first gradient, class Pass does not tell the reducer yet. It remembers the unit, and tells the
// reducer when the first gradient arrives.
//
// If some unit is kSharded, class Pass tells the reducer immediately instead, because other ranks may wait for the
// reduction. In this case every rank must run the pass, because the pass gathers parameters. Engine::prepare_step()
// then ends the reductions of the pass.
class Pass {
 public:
  // All must outlive it.
  Pass(const Config& config, const Ranks& ranks, Executor& executor, Reducer& reducer);

  void install_hooks(const std::vector<UnitDefinition>& units);
  void renew_hooks(size_t unit) const;
  // Adds a hook to an output of the unit. The hook tells the executor when the gradient of this output is known.
  void add_output(size_t unit, const at::Tensor& output);
  // Removes the hooks of parameters and the stand-ins of gradients. The hooks on outputs of earlier forwards stay, but
  // do nothing from now on.
  void remove_hooks();
  // Makes the backward of every earlier forward throw StateError, because parameters have changed outside of a step.
  void refuse_earlier_forwards() { ++hooks_.publishes; }

  void begin_forward(bool training);
  void begin(bool sync);
  // Ends a pass that has not failed on this rank. Throws StateError if it has failed on another rank. Collective.
  void end() { throw_discarded(end("")); }
  // Ends a pass. `failure` says why it failed on this rank; empty if it did not. Returns "" if the pass failed on no
  // rank. Otherwise discards all gradients since the last step, and returns on every rank the number of the lowest rank
  // that failed, and the first 511 bytes of its `failure`. Collective.
  std::string end(const std::string& failure);
  // Like end(), but only ends the reductions, and not the executor's backward.
  void end_only_reductions() { throw_discarded(end_reductions("")); }
  // Tells the reducer that a unit's backward has ended: see Note [Backward passes that are none of the engine's].
  void end_unit_backward(size_t unit);
  // If the last loss.backward() without begin() has failed, discards its gradients and all earlier ones of the step on
  // all ranks. In this case it is collective.
  void discard_failed();
  void zero_grad();
  void end_step(double loss_scale);

  // Throws StateError if the gradient of `param` might not be reduced yet. This is so after a backward under no_sync,
  // within a backward pass, after a loss.backward() that failed, and if told_reducer_before_first_gradient() is true.
  void check_reduced(const ParamSpec& param) const;
  // Returns whether, in a pass without begin(), the reducer was told before the first gradient that the backward of a
  // unit has ended. If so, returns true until the reductions are ended or discarded. See Note [Backward passes that are
  // none of the engine's].
  bool told_reducer_before_first_gradient() const { return other_.told_reducer; }
  // The texts of the last CommError that a hook or the end of a pass threw, and of the last IoError that a hook threw.
  // Each is "" if there was no such error since the last begin().
  struct Errors {
    std::string comm, io;
  };
  const Errors& errors() const { return errors_; }
  StepProgress& progress() { return progress_; }
  LossScaler& scaler() { return scaler_; }
  UserGradients& gradients() { return gradients_; }
  // Note [Gradients after the step]
  // Every bucket keeps the memory of its reduced gradients for the whole run, and an update only reads it. So the
  // gradients of the last step can be read without a copy until the next forward for training or the next backward
  // begins, or until gradients are discarded. Until then, last_grad_scale() returns the loss scale of these gradients.
  // Afterwards it returns nothing.
  const std::optional<double>& last_grad_scale() const { return last_grad_scale_; }

 private:
  struct Hooks {
    std::vector<std::vector<GradHook>> of_units;
    BackwardHooks of_outputs;
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);  // null after remove_hooks(); backward hooks check it
    int64_t publishes = 0;                                       // number of delayed updates published outside of steps
  };
  // See Note [Backward passes that are none of the engine's].
  struct OtherPass {
    std::vector<size_t> ended;  // units whose backward has ended before the first gradient
    bool told_reducer = false;  // see told_reducer_before_first_gradient()
  };
  // A loss.backward() that the engine did not begin, from its first gradient on.
  struct PlainPass {
    std::weak_ptr<void> pass;  // expires when the pass ends or fails
    double divisor = 1;        // each gradient is divided by it
  };

  // Runs the code of an autograd hook for a unit. Keeps the text of an IoError or CommError in errors_, because a
  // caller can get the exception from autograd without its type, as in Python.
  template <typename Call>
  void in_hook(std::string_view doing, size_t unit, const Call& call);
  void pre_backward(size_t unit, int64_t output, int64_t publishes_at_forward);
  void before_gradient();
  void add_gradient(ParamPlace place, const at::Tensor& grad);
  // Throws a CommError with the text of `error`, and keeps this text in errors_. If `error` says that ranks disagree,
  // first adds to the text what this rank was about to do (`doing`) and the likely cause.
  [[noreturn]] void explain_backward(const CommError& error, const std::string& doing);
  // Ends the reductions. end() calls it after the executor has ended the backward of every unit.
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

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
// It must launch nothing, because gradients that were already reduced for the step would be summed again, and because
// other ranks may not run such a pass. Only the first gradient shows that a pass is a loss.backward(). So the units
// that have ended before the first gradient are kept, and their ends count when it arrives. If units are sharded, ends
// count at once, because other ranks may wait for them. Every rank then runs the pass, because the pass gathers, and
// the step ends it.
class Pass {
 public:
  // All must outlive it.
  Pass(const Config& config, const Ranks& ranks, Executor& executor, Reducer& reducer);

  void install_hooks(const std::vector<UnitDefinition>& units);
  void renew_hooks(size_t unit) const;
  // Calls the executor when the gradient of an output of the unit is known.
  void add_output(size_t unit, const at::Tensor& output);
  // Also forgets the gradients of users.
  void remove_hooks();
  // Parameters have changed outside of a step, so a backward of an earlier forward is refused.
  void end_forwards() { ++hooks_.publishes; }

  void begin_forward(bool training);
  void begin(bool sync);
  // `failure` says why this rank's pass failed; empty if it did not. Throws StateError on the ranks where it did not,
  // if it did on others.
  void end() { throw_discarded(end("")); }
  // Returns the failure of the first rank that has one, with its number, on every rank. In that case all gradients
  // since the last step are discarded.
  std::string end(const std::string& failure);
  // Like end(), for gradients that came outside of a pass.
  void end_launched() { throw_discarded(end_reductions("")); }
  // Call it when a unit's backward has ended.
  void end_unit(size_t unit);
  // If the last pass has failed, discards its gradients and all earlier ones of the step on all ranks; collective then.
  void discard_failed();
  void zero_grad();
  void end_step(double loss_scale);

  // Throws StateError while gradients are being reduced: within a backward pass, and after a loss.backward() that
  // failed.
  void check_reduced(const ParamSpec& param) const;
  // Returns whether a pass without gradients has counted its ends.
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
  // gradients of the last step can be read without a copy until new ones arrive. This is their loss scale. It is empty
  // after the next forward pass has begun.
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
    std::vector<size_t> ended;  // before the first gradient
    bool has_counted = false;
  };
  // A loss.backward() that the engine did not begin, from its first gradient on.
  struct PlainPass {
    std::weak_ptr<void> pass;  // alive during it
    double divisor = 1;        // of its gradients
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

#pragma once
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/gradient_stand_ins.h"
#include "reduce/reducer.h"

namespace zeroshard {

// Finds what users do to param.grad between passes: they drop gradients (param.grad = None) and assign others.
// Gradients of backward passes are taken out of param.grad, and stand-ins show which ones wait for the step.
class UserGradients {
 public:
  // Both must outlive it.
  UserGradients(Executor& executor, Reducer& reducer) : executor_(executor), reducer_(reducer) {}

  // Adds a tensor of a parameter that is trained.
  void add(const at::Tensor& tensor, GradientStandIns::Place place, const std::string& name) {
    stand_ins_.add(tensor, place, name);
  }
  const std::vector<at::Tensor>& tensors() const { return stand_ins_.tensors(); }

  // Returns the first parameter with a gradient in param.grad, or "". Only a user can have set it there.
  std::string assigned() const;
  void drop_assigned();
  // Drops the gradients that users have removed since show(), before new ones arrive.
  void take_dropped();
  // Returns the gradients that take_dropped() has dropped in this step.
  const std::vector<std::string>& dropped() const { return dropped_; }
  void hide();  // also drops removed gradients; called before a backward pass
  void show();
  void end_pass();
  void end_step();
  // Drops everything, because the gradients since the last step are discarded.
  void discard();
  // Forgets the tensors, too.
  void forget();

 private:
  Executor& executor_;
  Reducer& reducer_;
  GradientStandIns stand_ins_;        // of the parameters that were trainable when the engine was made
  std::vector<std::string> dropped_;  // sorted
  int64_t passes_ = 0;                // passes of this step
};

}  // namespace zeroshard

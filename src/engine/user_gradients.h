#pragma once
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/gradient_stand_ins.h"
#include "reduce/reducer.h"

namespace zeroshard {

// Finds out whether users have dropped gradients (param.grad = None) or assigned others between passes. Gradients of
// backward passes are taken out of param.grad, and stand-ins show which ones wait for the step.
class UserGradients {
 public:
  // Both must outlive it.
  UserGradients(Executor& executor, Reducer& reducer) : executor_(executor), reducer_(reducer) {}

  // Adds one of the tensors of a trained parameter.
  void add(const at::Tensor& tensor, ParamPlace place, const std::string& name) { stand_ins_.add(tensor, place, name); }
  const std::vector<at::Tensor>& tensors() const { return stand_ins_.tensors(); }

  // Returns the name of the first parameter whose param.grad is neither None nor a stand-in; "" if there is none.
  // Between passes, only a user can have set such a gradient.
  std::string assigned() const;
  // Sets param.grad to None for all parameters, also where it is a stand-in.
  void clear_grads();
  // Drops the gradients whose stand-in users have removed since show(). Call it before new gradients arrive.
  void take_dropped();
  // Returns the gradients that take_dropped() has dropped in this step. Each is a text with the parameter's name and
  // the number of passes that the step had before.
  const std::vector<std::string>& dropped() const { return dropped_; }
  void hide();  // calls take_dropped() and removes the stand-ins; called before a backward pass
  void show();
  void end_pass();
  void end_step();
  // Calls clear_grads() and end_step(). Call it when the gradients since the last step are discarded.
  void discard();
  // Removes the stand-ins and forgets the tensors of add().
  void forget();

 private:
  Executor& executor_;
  Reducer& reducer_;
  GradientStandIns stand_ins_;        // for the tensors of add()
  std::vector<std::string> dropped_;  // sorted
  int64_t passes_ = 0;                // passes of this step that have ended
};

}  // namespace zeroshard

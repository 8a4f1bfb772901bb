#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "layout/unit_layout.h"

namespace zeroshard {

// Sets param.grad to a stand-in, a tensor without memory, while a gradient waits for the step. The gradient itself is
// spread over the ranks. Reading the stand-in throws an error that names the functions that read and change gradients.
// If the user sets param.grad to None, taken_away() returns the parameter. A parameter gets its stand-in again for
// later gradients, unless somebody has kept the stand-in. Parameters without elements have no stand-in.
class GradientStandIns {
 public:
  // Adds one of the tensors of the parameter `name`. The tensor requires a gradient.
  void add(const at::Tensor& tensor, ParamPlace place, const std::string& name);
  // Returns the tensors in the order in which they were added.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // Sets param.grad to a stand-in for each tensor whose parameter has a gradient (`has_gradient`), if param.grad is
  // None.
  void show(const std::function<bool(ParamPlace)>& has_gradient);
  // Returns whether param.grad of `tensor` is its stand-in. Returns false if param.grad is None, or another tensor, or
  // a stand-in whose `data` the user has set.
  bool shows(const at::Tensor& tensor) const;
  // Returns the parameters for which the user has set param.grad to None since show(), and ends their stand-ins. The
  // caller drops their gradients.
  std::vector<ParamPlace> taken_away();
  // Removes all stand-ins from param.grad before a backward pass, so that autograd does not add to them.
  void take_back();
  // Removes all stand-ins. Call it when a step has used the gradients, or when they were dropped. Reading a stand-in
  // that somebody has kept then throws an error that says that its gradient is gone.
  void end();

 private:
  struct StandIn {
    at::Tensor grad;  // undefined for a parameter without elements
    ParamPlace place;
    std::string name;
    bool is_shown = false;
  };
  void take_back(size_t index);
  void end(size_t index);

  std::vector<at::Tensor> tensors_;
  std::vector<StandIn> stand_ins_;  // parallel to tensors_
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
};

}  // namespace zeroshard

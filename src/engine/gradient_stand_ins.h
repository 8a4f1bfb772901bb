#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace zeroshard {

// Shows the user a tensor without memory as param.grad while a gradient waits for the step. Reading the tensor throws
// an error that names the functions that read and change gradients. Setting param.grad to None drops the gradient. Each
// gradient has a new stand-in if somebody has kept the previous one.
class GradientStandIns {
 public:
  // Identifies a parameter by the engine's indices.
  struct Place {
    size_t unit, param;
    bool operator==(const Place&) const = default;
  };

  // Adds one of the tensors of the parameter `name`. The tensor requires a gradient.
  void add(const at::Tensor& tensor, Place place, const std::string& name);
  // Returns the tensors in the order in which they were added.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // Gives a stand-in to each parameter for which `has_gradient` returns true.
  void show(const std::function<bool(Place)>& has_gradient);
  // Returns whether param.grad of `tensor` is its stand-in rather than a tensor of the user.
  bool shows(const at::Tensor& tensor) const;
  // Returns the parameters whose stand-in the user has removed since show(). The caller drops their gradients.
  std::vector<Place> taken_away();
  // Removes all stand-ins while a backward pass adds to the gradients.
  void take_back();
  // Removes all stand-ins because the gradients were used by a step or dropped. Reading a stand-in that somebody has
  // kept then throws an error that says this.
  void end();

 private:
  struct StandIn {
    at::Tensor grad;  // undefined for a parameter without elements
    Place place;
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

#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace zeroshard {

// Users see a tensor without memory as param.grad while a gradient waits for the step. Reading it throws an error
// that names the functions that read and change gradients, and setting param.grad to None drops the gradient.
class GradientStandIns {
 public:
  // A parameter as the engine knows it.
  struct Place {
    size_t unit, param;
    bool operator==(const Place&) const = default;
  };

  // `tensor` is one of those of the parameter `name`. It requires a gradient.
  void add(const at::Tensor& tensor, Place place, const std::string& name);
  // The tensors, in the order in which they were added.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // Gives each parameter of which `has_gradient` is true its stand-in.
  void show(const std::function<bool(Place)>& has_gradient);
  // Takes all of them back. Returns the parameters whose stand-in somebody has taken away since show().
  std::vector<Place> take_back();

 private:
  struct StandIn {
    at::Tensor grad;  // undefined for a parameter without elements
    Place place;
    std::string name;
    bool is_shown = false;
  };
  std::vector<at::Tensor> tensors_;
  std::vector<StandIn> stand_ins_;  // as tensors_
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace zeroshard {

// Users see a tensor without memory as param.grad while a gradient waits for the step. Reading it throws an error
// that names the functions that read and change gradients, and setting param.grad to None drops the gradient. A
// stand-in is for one gradient: the next one has another, as far as somebody has kept the first.
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
  // Whether param.grad of `tensor` is its stand-in, and nothing of the user's.
  bool shows(const at::Tensor& tensor) const;
  // Returns the parameters whose stand-in somebody has taken away since show(). Their gradients end.
  std::vector<Place> taken_away();
  // Takes all of them back while a backward pass adds to the gradients.
  void take_back();
  // Takes all of them back, because the gradients have ended.
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
  std::vector<StandIn> stand_ins_;  // as tensors_
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
};

}  // namespace zeroshard

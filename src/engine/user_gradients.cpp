#include "engine/user_gradients.h"

#include <algorithm>

#include "base/check.h"

namespace zeroshard {

std::string UserGradients::assigned() const {
  const auto is_assigned = [&](const at::Tensor& tensor) {
    return tensor.grad().defined() && !stand_ins_.shows(tensor);
  };
  for (const ParamPlace place : executor_.params())
    if (std::ranges::any_of(executor_.tensors(place), is_assigned)) return executor_.spec(place).name();
  return "";
}

void UserGradients::clear_grads() {
  stand_ins_.end();
  for (const ParamPlace place : executor_.params())
    for (const at::Tensor& tensor : executor_.tensors(place)) tensor.mutable_grad().reset();
}

void UserGradients::take_dropped() {
  for (const ParamPlace place : stand_ins_.taken_away()) {
    reducer_.drop(place.unit, place.param);
    dropped_.push_back(concat(executor_.spec(place).name(), " behind pass ", passes_, " of the step"));
  }
  std::ranges::sort(dropped_);  // so that the list does not depend on the order in which they were dropped
}

void UserGradients::hide() {
  take_dropped();
  stand_ins_.take_back();
}

void UserGradients::show() {
  stand_ins_.show([this](ParamPlace place) { return reducer_.has_grad(place.unit, place.param); });
}

void UserGradients::end_pass() {
  ++passes_;
  show();
}

void UserGradients::end_step() {
  stand_ins_.end();
  dropped_.clear();
  passes_ = 0;
}

void UserGradients::discard() {
  clear_grads();  // a gradient remains in param.grad if a hook of the user threw
  end_step();
}

void UserGradients::forget() {
  stand_ins_.end();
  stand_ins_ = GradientStandIns();
}

}  // namespace zeroshard

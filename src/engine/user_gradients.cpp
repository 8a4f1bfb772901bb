#include "engine/user_gradients.h"

#include <algorithm>

#include "base/check.h"

namespace zeroshard {

std::string UserGradients::assigned() const {
  for (size_t u = 0; u < executor_.size(); ++u) {
    for (size_t i = 0; i < executor_.unit(u).layout().params.size(); ++i) {
      const std::vector<at::Tensor>& tensors = executor_.unit(u).tensors(i);
      const auto has_one = [&](const at::Tensor& tensor) {
        return tensor.grad().defined() && !stand_ins_.shows(tensor);
      };
      if (std::ranges::any_of(tensors, has_one)) return executor_.unit(u).layout().params[i].name();
    }
  }
  return "";
}

void UserGradients::drop_assigned() {
  stand_ins_.end();
  for (size_t u = 0; u < executor_.size(); ++u)
    for (size_t i = 0; i < executor_.unit(u).layout().params.size(); ++i)
      for (const at::Tensor& tensor : executor_.unit(u).tensors(i)) tensor.mutable_grad().reset();
}

void UserGradients::take_dropped() {
  for (const auto& [unit, param] : stand_ins_.taken_away()) {
    reducer_.drop(unit, param);
    dropped_.push_back(
        concat(executor_.unit(unit).layout().params[param].name(), " behind pass ", passes_, " of the step"));
  }
  std::ranges::sort(dropped_);  // so that the list does not depend on the order in which they were dropped
}

void UserGradients::hide() {
  take_dropped();
  stand_ins_.take_back();
}

void UserGradients::show() {
  stand_ins_.show([this](GradientStandIns::Place place) { return reducer_.has_grad(place.unit, place.param); });
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
  drop_assigned();  // a gradient remains in param.grad if a hook of the user threw
  end_step();
}

void UserGradients::forget() {
  stand_ins_.end();
  stand_ins_ = GradientStandIns();
}

}  // namespace zeroshard

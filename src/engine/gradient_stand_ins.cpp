#include "engine/gradient_stand_ins.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "device/swap_storage.h"

namespace zeroshard {

namespace {

at::Tensor stand_in_for(const at::Tensor& tensor, const std::string& name) {
  const std::string message =
      concat("the gradient of parameter '", name,
             "' waits for the step, spread over the ranks. Read it by zeroshard.get_gradient(param), change it by "
             "zeroshard.set_gradient(param, values), clip it by the key gradient_clipping of the configuration, and "
             "drop it by param.grad = None");
  const c10::Storage storage =
      make_swapped_storage(tensor.numel() * int64_t(tensor.element_size()), tensor.device(), message);
  return view_of(storage, tensor.scalar_type(), tensor.sizes());
}

}  // namespace

void GradientStandIns::add(const at::Tensor& tensor, Place place, const std::string& name) {
  tensors_.push_back(tensor);
  stand_ins_.push_back({tensor.numel() > 0 ? stand_in_for(tensor, name) : at::Tensor(), place, name});
}

void GradientStandIns::show(const std::function<bool(Place)>& has_gradient) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    StandIn& stand_in = stand_ins_[i];
    if (!stand_in.grad.defined() || tensors_[i].grad().defined() || !has_gradient(stand_in.place)) continue;
    if (!is_swapped(stand_in.grad)) stand_in.grad = stand_in_for(tensors_[i], stand_in.name);  // param.grad.data = ...
    tensors_[i].mutable_grad() = stand_in.grad;
    stand_in.is_shown = true;
  }
}

std::vector<GradientStandIns::Place> GradientStandIns::take_back() {
  std::vector<Place> taken;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!std::exchange(stand_ins_[i].is_shown, false)) continue;
    at::Tensor& grad = tensors_[i].mutable_grad();
    if (!grad.defined()) {
      if (std::ranges::find(taken, stand_ins_[i].place) == taken.end()) taken.push_back(stand_ins_[i].place);
    } else if (grad.is_same(stand_ins_[i].grad) && is_swapped(grad)) {
      grad.reset();
    }
  }
  return taken;
}

}  // namespace zeroshard

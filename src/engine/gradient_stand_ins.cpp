#include "engine/gradient_stand_ins.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "device/detachable_storage.h"

namespace zeroshard {

namespace {

at::Tensor stand_in_for(const at::Tensor& tensor, const std::string& name) {
  const std::string message =
      concat("the gradient of parameter '", name,
             "' waits for the step, spread over the ranks. Read it by zeroshard.get_gradient(param), change it by "
             "zeroshard.set_gradient(param, values), clip it by the key gradient_clipping of the configuration, and "
             "drop it by param.grad = None");
  const c10::Storage storage =
      make_detachable_storage(tensor.numel() * int64_t(tensor.element_size()), tensor.device(), message);
  return view_of(storage, tensor.scalar_type(), tensor.sizes());
}

}  // namespace

void GradientStandIns::add(const at::Tensor& tensor, ParamPlace place, const std::string& name) {
  tensors_.push_back(tensor);
  index_of_.emplace(tensor.unsafeGetTensorImpl(), stand_ins_.size());
  stand_ins_.push_back({tensor.numel() > 0 ? stand_in_for(tensor, name) : at::Tensor(), place, name});
}

void GradientStandIns::show(const std::function<bool(ParamPlace)>& has_gradient) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    StandIn& stand_in = stand_ins_[i];
    if (!stand_in.grad.defined() || tensors_[i].grad().defined() || !has_gradient(stand_in.place)) continue;
    // A stand-in that is not detachable any more cannot be shown again. Either end() has abandoned it because somebody
    // keeps it, or the user has set param.grad.data, so that it is an ordinary tensor now.
    if (!is_detachable(stand_in.grad)) stand_in.grad = stand_in_for(tensors_[i], stand_in.name);
    tensors_[i].mutable_grad() = stand_in.grad;
    stand_in.is_shown = true;
  }
}

bool GradientStandIns::shows(const at::Tensor& tensor) const {
  const auto found = index_of_.find(tensor.unsafeGetTensorImpl());
  if (found == index_of_.end()) return false;
  const StandIn& stand_in = stand_ins_[found->second];
  return stand_in.is_shown && tensor.grad().is_same(stand_in.grad) && is_detachable(stand_in.grad);
}

std::vector<ParamPlace> GradientStandIns::taken_away() {
  std::vector<ParamPlace> taken;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const StandIn& stand_in = stand_ins_[i];
    if (!stand_in.is_shown || tensors_[i].grad().defined()) continue;
    if (std::ranges::find(taken, stand_in.place) == taken.end()) taken.push_back(stand_in.place);
  }
  // Another tensor of a tied parameter may still show its stand-in, so the stand-ins of all tensors of the parameter
  // end.
  for (size_t i = 0; i < tensors_.size() && !taken.empty(); ++i)
    if (std::ranges::find(taken, stand_ins_[i].place) != taken.end()) end(i);
  return taken;
}

void GradientStandIns::take_back() {
  for (size_t i = 0; i < tensors_.size(); ++i) take_back(i);
}

void GradientStandIns::end() {
  for (size_t i = 0; i < tensors_.size(); ++i) end(i);
}

void GradientStandIns::take_back(size_t index) {
  if (shows(tensors_[index])) tensors_[index].mutable_grad().reset();
  stand_ins_[index].is_shown = false;
}

void GradientStandIns::end(size_t index) {
  take_back(index);
  const StandIn& stand_in = stand_ins_[index];
  if (!stand_in.grad.defined() || !is_detachable(stand_in.grad)) return;
  if (stand_in.grad.use_count() == 1 && stand_in.grad.storage().use_count() == 1) return;
  // Somebody keeps the stand-in or a view of it, and could assign it to param.grad when there is another gradient.
  // After abandon(), shows() returns false for it.
  abandon(stand_in.grad.storage(), concat("the gradient of parameter '", stand_in.name,
                                          "' from before is gone: a step has used it, or it was dropped. Keep a copy "
                                          "by zeroshard.get_gradient(param) while it waits for the step"));
}

}  // namespace zeroshard

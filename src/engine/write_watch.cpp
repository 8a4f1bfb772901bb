#include "engine/write_watch.h"

#include <algorithm>

namespace zeroshard {
uint64_t WriteWatch::version(ParamPlace place) const {
  uint64_t sum = 0;
  for (const at::Tensor& tensor : executor_.tensors(place)) {
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) sum += counter.current_version();  // a tensor made in inference mode has no counter
  }
  return sum;
}

std::vector<int64_t> WriteWatch::written() const {
  std::vector<int64_t> result;
  for (const ParamPlace place : executor_.params()) {
    const bool is_moved = executor_.unit(place.unit).is_moved(place.param);
    result.push_back(is_moved ? kMoved : is_written(place) ? kWritten : 0);
  }
  return result;
}

bool WriteWatch::any_written() const {
  return std::ranges::any_of(executor_.params(), [this](ParamPlace place) { return is_written(place); });
}

bool WriteWatch::is_written(ParamPlace place) const {
  return version(place) != versions_[place.unit][place.param] || executor_.unit(place.unit).is_moved(place.param);
}

void WriteWatch::accept(size_t unit) {
  std::vector<uint64_t>& versions = versions_.at(unit);
  versions.resize(executor_.unit(unit).layout().params.size());
  for (size_t i = 0; i < versions.size(); ++i) versions[i] = version({unit, i});
}

void WriteWatch::accept_all() {
  versions_.resize(executor_.size());
  for (size_t unit = 0; unit < versions_.size(); ++unit) accept(unit);
}

void WriteWatch::tell_autograd(ParamPlace place) {
  const bool was_written = is_written(place);
  for (const at::Tensor& tensor : executor_.tensors(place)) {
    c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    if (impl->version_counter().enabled()) impl->bump_version();
  }
  if (!was_written) accepted(place) = version(place);
}

}  // namespace zeroshard

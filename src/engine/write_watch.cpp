#include "engine/write_watch.h"

#include <algorithm>

#include "file/hash.h"

namespace zeroshard {
namespace {

int64_t checksum(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  if (dense.is_cpu()) return int64_t(hash_bytes(dense.const_data_ptr(), int64_t(dense.nbytes())));
  const auto words = dense.element_size() == 8   ? at::kLong
                     : dense.element_size() == 4 ? at::kInt
                     : dense.element_size() == 2 ? at::kShort
                                                 : at::kByte;
  return dense.view({-1}).view(words).sum(at::kLong).item<int64_t>();  // only the sum is copied to the host
}

}  // namespace

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

std::vector<int64_t> WriteWatch::checksums(size_t unit) const {
  std::vector<int64_t> result;
  const Unit& values = executor_.unit(unit);
  for (size_t i = 0; i < values.layout().params.size(); ++i) result.push_back(checksum(values.tensors(i).front()));
  return result;
}

void WriteWatch::begin_reading(size_t unit) {
  const auto found = readings_.find(unit);
  if (found != readings_.end()) {
    ++found->second.times;
  } else {
    readings_.emplace(unit, Reading{1, checksums(unit)});
  }
}

std::vector<std::string> WriteWatch::end_reading(size_t unit) {
  const auto found = readings_.find(unit);
  if (found == readings_.end()) return {};
  Unit& values = executor_.unit(unit);
  std::vector<std::string> names;
  if (values.is_unsharded()) {  // if it is not, a step has freed the values in the meantime
    const std::vector<int64_t> now = checksums(unit);
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] == found->second.checksums[i]) continue;
      names.push_back(values.layout().params[i].name());
      values.point_back(i);
    }
  }
  if (--found->second.times == 0) readings_.erase(found);
  return names;
}

void WriteWatch::abandon_reading(size_t unit) {
  const auto found = readings_.find(unit);
  if (found != readings_.end() && --found->second.times == 0) readings_.erase(found);
}

}  // namespace zeroshard

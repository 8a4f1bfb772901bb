#include "engine/held_values.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

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

std::vector<int64_t> checksums_of(const Unit& unit) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < unit.layout().params.size(); ++i) result.push_back(checksum(unit.tensors(i).front()));
  return result;
}

}  // namespace

HeldValues::Values HeldValues::values_of(const Unit& unit) {
  Values values;
  for (size_t g = 0; g < unit.layout().groups.size(); ++g)
    values.groups.push_back(unit.full(g).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  for (size_t i = 0; i < unit.layout().params.size(); ++i) {
    if (!unit.is_moved(i)) continue;
    for (const at::Tensor& tensor : unit.tensors(i)) {
      const at::Tensor memory = tensor.variable_data();
      values.moved.push_back({tensor, memory, memory.clone()});
    }
  }
  return values;
}

void HeldValues::begin(size_t unit, Purpose purpose) {
  const Unit& held = executor_.unit(unit);
  const bool stays = held.placement() != Placement::kSharded || entries_.contains(unit);
  // The entry is added first, so that the caller can release the unit even if its values cannot be read.
  Entry& entry = entries_[unit].emplace_back(Entry{purpose});
  if (purpose == Purpose::kRead) entry.checksums = checksums_of(held);
  if ((purpose == Purpose::kModify || purpose == Purpose::kReadAndDrop) && stays) entry.before = values_of(held);
}

void HeldValues::end(size_t unit) {
  const auto found = entries_.find(unit);
  if (found == entries_.end()) return;
  found->second.pop_back();
  if (found->second.empty()) entries_.erase(found);
}

void HeldValues::end_and_restore(size_t unit) {
  Unit& held = executor_.unit(unit);
  const auto found = entries_.find(unit);
  if (found != entries_.end() && found->second.back().before && held.is_unsharded()) {
    const at::NoGradGuard no_grad;
    const Values& before = *found->second.back().before;
    held.take_back(/*values=*/false);
    for (size_t g = 0; g < before.groups.size(); ++g) held.full(g).copy_(before.groups[g]);
    for (const Moved& moved : before.moved) {
      moved.tensor.set_data(moved.memory);
      moved.memory.copy_(moved.values);
    }
  }
  end(unit);
}

std::vector<std::string> HeldValues::end_and_compare(size_t unit) {
  Unit& held = executor_.unit(unit);
  const auto found = entries_.find(unit);
  std::vector<std::string> names;
  if (found != entries_.end() && held.is_unsharded()) {  // otherwise a step has freed the values in the meantime
    const auto reading = std::find_if(found->second.rbegin(), found->second.rend(),
                                      [](const Entry& entry) { return !entry.checksums.empty(); });
    const std::vector<int64_t> now = reading != found->second.rend() ? checksums_of(held) : std::vector<int64_t>();
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] == reading->checksums[i]) continue;
      names.push_back(held.layout().params[i].name());
      held.point_back(i);
    }
  }
  end(unit);
  return names;
}

void HeldValues::accept(size_t unit) {
  const auto found = entries_.find(unit);
  if (found == entries_.end()) return;
  for (Entry& entry : found->second) {
    if (entry.before) entry.before = values_of(executor_.unit(unit));
    entry.checksums.clear();
  }
}

bool HeldValues::may_change() const {
  for (const auto& [unit, entries] : entries_)
    for (const Entry& entry : entries)
      if (entry.purpose == Purpose::kModify || entry.purpose == Purpose::kModifyForGood) return true;
  return false;
}

void HeldValues::forget_checksums() {
  for (auto& [unit, entries] : entries_)
    for (Entry& entry : entries) entry.checksums.clear();
}

void HeldValues::forget() {
  forget_checksums();
  for (auto& [unit, entries] : entries_)
    for (Entry& entry : entries) entry.before.reset();
}

}  // namespace zeroshard

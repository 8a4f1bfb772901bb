#include "engine/held_values.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace zeroshard {

HeldValues::Values HeldValues::values_of(const Unit& unit) const {
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
  Entry entry{purpose, std::nullopt};
  const Unit& held = executor_.unit(unit);
  const bool stays = held.placement() != Placement::kSharded || entries_.contains(unit);
  if ((purpose == Purpose::kModify || purpose == Purpose::kReadAndDrop) && stays) entry.before = values_of(held);
  entries_[unit].push_back(std::move(entry));
}

std::optional<HeldValues::Purpose> HeldValues::end(size_t unit) {
  const auto found = entries_.find(unit);
  if (found == entries_.end()) return std::nullopt;
  const Purpose purpose = found->second.back().purpose;
  found->second.pop_back();
  if (found->second.empty()) entries_.erase(found);
  return purpose;
}

std::optional<HeldValues::Purpose> HeldValues::end_and_restore(size_t unit) {
  const auto found = entries_.find(unit);
  if (found == entries_.end()) return std::nullopt;
  const std::optional<Values> before = std::move(found->second.back().before);
  Unit& held = executor_.unit(unit);
  if (before && held.is_unsharded()) {
    const at::NoGradGuard no_grad;
    held.take_back(/*values=*/false);
    for (size_t g = 0; g < before->groups.size(); ++g) held.full(g).copy_(before->groups[g]);
    for (const Moved& moved : before->moved) {
      moved.tensor.set_data(moved.memory);
      moved.memory.copy_(moved.values);
    }
  }
  return end(unit);
}

void HeldValues::accept(size_t unit) {
  const auto found = entries_.find(unit);
  if (found == entries_.end()) return;
  const Unit& held = executor_.unit(unit);
  for (Entry& entry : found->second)
    if (entry.before) entry.before = values_of(held);
}

bool HeldValues::may_change() const {
  for (const auto& [unit, entries] : entries_)
    for (const Entry& entry : entries)
      if (entry.purpose == Purpose::kModify || entry.purpose == Purpose::kModifyForGood) return true;
  return false;
}

void HeldValues::forget() {
  for (auto& [unit, entries] : entries_)
    for (Entry& entry : entries) entry.before.reset();
}

}  // namespace zeroshard

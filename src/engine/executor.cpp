#include "engine/executor.h"

#include <algorithm>
#include <utility>

namespace zeroshard {

Executor::Executor(std::vector<std::unique_ptr<Unit>> units, std::vector<int> parents, int prefetch_depth,
                   std::function<void(size_t)> on_unit_done)
    : units_(std::move(units)),
      parents_(std::move(parents)),
      prefetch_depth_(prefetch_depth),
      on_unit_done_(std::move(on_unit_done)),
      holds_(units_.size(), 0) {}

void Executor::begin_pass(bool training) {
  order_->end_pass();
  order_ = training ? &training_ : &evaluation_;
  order_->begin_pass();
}

void Executor::demand(size_t index) {
  order_->advance(index);
  units_[index]->unshard();
  int depth = 0;
  for (const size_t next : order_->upcoming()) {
    if (depth == prefetch_depth_) break;
    if (next == index || units_[next]->is_unsharded()) continue;
    if (!units_[next]->prefetch()) break;
    ++depth;
  }
  units_[index]->wait();
}

void Executor::pre_forward(size_t index, bool recomputing) {
  if (recomputing) {
    const std::set<size_t> others = std::exchange(recomputed_, {});
    for (const size_t other : others) {
      if (other == index || contains(other, index)) {
        recomputed_.insert(other);
      } else {
        reshard(other);
      }
    }
    if (!in_backward_.contains(index)) recomputed_.insert(index);
  }
  demand(index);
}

void Executor::post_forward(size_t index, bool recomputing) {
  if (recomputing) return;
  const auto upcoming = order_->upcoming();
  if (!upcoming.empty() && upcoming.front() == index) return;
  reshard(index);
}

void Executor::pre_backward(size_t index, const void* output) {
  if (in_backward_.contains(index)) return;
  finish_others(index, output);
  in_backward_.emplace(index, output);
  recomputed_.erase(index);
  demand(index);
}

void Executor::finish_others(size_t index, const void* output) {
  const auto others = in_backward_;
  for (const auto& [other, begun_with] : others) {
    if (contains(other, index) || begun_with == output) {
      continue;
    }
    in_backward_.erase(other);
    reshard(other);
    on_unit_done_(other);
  }
}

void Executor::end_backward() {
  for (const auto& [index, output] : std::exchange(in_backward_, {})) {
    reshard(index);
    on_unit_done_(index);
  }
  for (const size_t index : std::exchange(recomputed_, {})) reshard(index);
  order_->end_pass();
  // A unit that was gathered ahead and never used.
  for (size_t index = 0; index < units_.size(); ++index) {
    if (units_[index]->placement() == Placement::kSharded) reshard(index);
  }
}

void Executor::reshard(size_t index) {
  Unit& unit = *units_[index];
  if (holds_[index] == 0 && unit.placement() == Placement::kSharded) unit.reshard();
}

void Executor::hold(size_t index) {
  ++holds_[index];
  units_[index]->unshard();
  units_[index]->wait();
}

void Executor::release(size_t index) {
  if (--holds_[index] == 0) reshard(index);
}

void Executor::refresh() {
  for (const auto& unit : units_) unit->start_refresh();
  for (const auto& unit : units_) unit->finish_refresh();
}

bool Executor::contains(size_t outer, size_t inner) const {
  for (int at = int(inner); at >= 0; at = parents_[size_t(at)]) {
    if (size_t(at) == outer) return true;
  }
  return false;
}

}  // namespace zeroshard

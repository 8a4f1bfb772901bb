#include "engine/executor.h"

#include <algorithm>
#include <utility>

namespace zeroshard {
namespace {

// How far ahead in the order demand() looks for units to gather. A model of many small units that are whole has none
// for thousands of places, and each of them would be looked at for each unit.
constexpr size_t kLookAhead = 16;

}  // namespace

Executor::Executor(std::vector<std::unique_ptr<Unit>> units, const std::vector<int>& parents, int prefetch_depth,
                   std::function<void(size_t)> on_unit_done)
    : units_(std::move(units)),
      around_(units_.size()),
      prefetch_depth_(prefetch_depth),
      on_unit_done_(std::move(on_unit_done)),
      holds_(units_.size(), 0) {
  const auto is_replicated = [](const auto& unit) { return unit->placement() == Placement::kReplicated; };
  if (std::all_of(units_.begin(), units_.end(), is_replicated)) prefetch_depth_ = 0;  // there is nothing to gather
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (int at = int(unit); at >= 0; at = parents[size_t(at)]) around_[unit].insert(size_t(at));
  }
}

void Executor::begin_pass(bool training) {
  in_forward_.clear();  // a forward that failed has left its own there
  order_->end_pass();
  order_ = training ? &training_ : &evaluation_;
  order_->begin_pass();
}

void Executor::demand(size_t index) {
  order_->advance(index);
  units_[index]->unshard();
  int depth = 0;
  const auto upcoming = order_->upcoming();
  for (const size_t next : upcoming.first(std::min(upcoming.size(), kLookAhead))) {
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
  } else {
    around_[index].insert(in_forward_.begin(), in_forward_.end());
    in_forward_.push_back(index);
  }
  demand(index);
}

void Executor::post_forward(size_t index, bool recomputing) {
  if (recomputing) return;
  // With those that it called and that failed, where it went on without them.
  const auto call = std::find(in_forward_.rbegin(), in_forward_.rend(), index);
  if (call != in_forward_.rend()) in_forward_.erase(call.base() - 1, in_forward_.end());
  if (std::find(in_forward_.begin(), in_forward_.end(), index) != in_forward_.end()) return;
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
  for (auto next = in_backward_.begin(); next != in_backward_.end();) {
    const auto [other, begun_with] = *next;
    if (contains(other, index) || begun_with == output) {
      ++next;
      continue;
    }
    next = in_backward_.erase(next);
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

}  // namespace zeroshard

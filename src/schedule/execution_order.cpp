#include "schedule/execution_order.h"

#include <algorithm>
#include <utility>

namespace zeroshard {

void ExecutionOrder::begin_pass() {
  current_.clear();
  needed_.clear();
  backward_ = kNone;
  in_pass_ = true;
  has_ended_ = false;
  following_ = !recorded_.empty();
}

void ExecutionOrder::begin_backward() {
  if (!in_pass_ || backward_ != kNone) return;
  backward_ = current_.size();
  following_ = following_ && backward_ == recorded_backward_;
}

void ExecutionOrder::note(size_t unit) {
  if (in_pass_ && needed_.size() < kMaxLength) needed_.push_back(unit);
}

bool ExecutionOrder::advance(size_t unit) {
  note(unit);
  if (!in_pass_) return false;
  if (current_.size() == kMaxLength) return following_ = false;
  const size_t position = current_.size();
  current_.push_back(unit);
  following_ = following_ && position < recorded_.size() && recorded_[position] == unit;
  return following_;
}

void ExecutionOrder::swap_with_recorded() {
  std::swap(recorded_, current_);
  std::swap(recorded_needed_, needed_);
  std::swap(recorded_backward_, backward_);
}

void ExecutionOrder::end_pass() {
  if (in_pass_) {
    swap_with_recorded();
    has_ended_ = true;
  }
  in_pass_ = following_ = false;
}

void ExecutionOrder::forget() {
  if (has_ended_) swap_with_recorded();
  in_pass_ = following_ = has_ended_ = false;
}

std::span<const size_t> ExecutionOrder::upcoming() const {
  if (!following_) return {};
  return std::span(recorded_).subspan(current_.size());
}

bool ExecutionOrder::is_next(size_t unit) const {
  const auto units = upcoming();
  return !units.empty() && units.front() == unit;
}

std::span<const size_t> ExecutionOrder::upcoming_before(size_t unit) const {
  const auto units = upcoming();
  const auto found = std::find(units.begin(), units.end(), unit);
  return found == units.end() ? units.first(0) : units.first(size_t(found - units.begin()));
}

}  // namespace zeroshard

#include "schedule/execution_order.h"

#include <utility>

namespace zeroshard {

void ExecutionOrder::begin_pass() {
  current_.clear();
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

bool ExecutionOrder::advance(size_t unit) {
  if (!in_pass_) return false;
  if (current_.size() == kMaxLength) return following_ = false;
  const size_t position = current_.size();
  current_.push_back(unit);
  following_ = following_ && position < recorded_.size() && recorded_[position] == unit;
  return following_;
}

void ExecutionOrder::end_pass() {
  if (in_pass_) {
    std::swap(recorded_, current_);
    std::swap(recorded_backward_, backward_);
    has_ended_ = true;
  }
  in_pass_ = following_ = false;
}

void ExecutionOrder::forget() {
  if (has_ended_) {
    std::swap(recorded_, current_);
    std::swap(recorded_backward_, backward_);
  }
  in_pass_ = following_ = has_ended_ = false;
}

std::span<const size_t> ExecutionOrder::upcoming() const {
  if (!following_) return {};
  return std::span(recorded_).subspan(current_.size());
}

}  // namespace zeroshard

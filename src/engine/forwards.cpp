#include "engine/forwards.h"

#include <algorithm>

#include "schedule/execution_order.h"

namespace zeroshard {

bool Forwards::end(size_t unit, bool has_backward) {
  ended_[unit] = ++count_;
  if (has_backward && (awaited_.empty() || awaited_.back() != unit)) {
    if (awaited_.size() == ExecutionOrder::kMaxLength) awaited_.clear();  // only a program without backwards gets here
    awaited_.push_back(unit);
  }
  const auto call = std::find(running_.rbegin(), running_.rend(), unit);
  if (call != running_.rend()) running_.erase(call.base() - 1, running_.end());
  return !is_running(unit);
}

bool Forwards::is_running(size_t unit) const {
  return std::find(running_.begin(), running_.end(), unit) != running_.end();
}

std::vector<size_t> Forwards::take(size_t unit) {
  const auto last = std::find(awaited_.rbegin(), awaited_.rend(), unit);
  if (last == awaited_.rend()) return {};
  std::vector<size_t> later(awaited_.rbegin(), last);
  awaited_.erase(last.base() - 1, awaited_.end());
  return later;
}

std::vector<size_t> Forwards::take_all() {
  std::vector<size_t> all(awaited_.rbegin(), awaited_.rend());
  awaited_.clear();
  return all;
}

}  // namespace zeroshard

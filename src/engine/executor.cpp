#include "engine/executor.h"

#include <utility>

#include "device/named_range.h"
#include "schedule/prefetch.h"

namespace zeroshard {
namespace {

// The refresh of a unit is awaited after the updates of this many later units. The number is small, so that the unit's
// values are still in the processor's cache. It is not zero, because other ranks may need longer for the unit's update.
constexpr size_t kRefreshesUnderWay = 2;

}  // namespace

Executor::Executor(std::vector<std::unique_ptr<Unit>> units, const std::vector<int>& parents,
                   const std::function<int(const UnitLayout&)>& prefetch_depth, Callbacks callbacks)
    : units_(std::move(units)),
      around_(units_.size()),
      prefetch_depth_(units_.size(), 0),
      callbacks_(std::move(callbacks)),
      forwards_(units_.size()),
      holds_(units_.size(), 0) {
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit]->placement() != Placement::kReplicated)
      prefetch_depth_[unit] = prefetch_depth(units_[unit]->layout());
    for (int at = int(unit); at >= 0; at = parents[size_t(at)]) around_[unit].insert(size_t(at));
  }
}

std::vector<ParamPlace> Executor::params() const {
  std::vector<ParamPlace> places;
  for (size_t unit = 0; unit < units_.size(); ++unit)
    for (size_t param = 0; param < units_[unit]->layout().params.size(); ++param) places.push_back({unit, param});
  return places;
}

void Executor::begin_pass(bool training) {
  if (backward_begun_) end_units_of_backward();  // after a backward without end_backward(), such as autograd.grad()
  forwards_.abandon();                           // a forward that failed has left its units in forwards_
  order_->end_pass();
  order_ = training ? &training_ : &evaluation_;
  order_->begin_pass();
}

void Executor::demand(size_t index) {
  const bool is_replicated = units_[index]->placement() == Placement::kReplicated;
  is_replicated ? order_->note(index) : void(order_->advance(index));
  units_[index]->unshard();
  if (callbacks_.on_upcoming) callbacks_.on_upcoming(order_->upcoming());
  gather_ahead(
      order_->upcoming(), index, prefetch_depth_, [&](size_t next) { return units_[next]->is_unsharded(); },
      [&](size_t next) { return units_[next]->prefetch(); });
  units_[index]->wait();
}

// Unshards a unit that this rank's backward needs. Calls demand(), which advances the order, only for a kSharded unit.
// Other units must not advance it, because ranks may need these at different times, and the order must be the same on
// all ranks.
void Executor::demand_in_backward(size_t index) {
  if (units_[index]->placement() == Placement::kSharded) return demand(index);
  units_[index]->unshard();
  units_[index]->wait();
}

void Executor::pre_forward(size_t index, bool recomputing) {
  if (recomputing) {
    let_others_pass(index);
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
    around_[index].insert(forwards_.running().begin(), forwards_.running().end());
    forwards_.begin(index);
  }
  recomputing ? demand_in_backward(index) : demand(index);
}

void Executor::post_forward(size_t index, bool recomputing) {
  if (recomputing) return;
  if (!forwards_.end(index, /*has_backward=*/order_ == &training_)) return;
  if (!order_->is_next(index)) reshard(index);
}

void Executor::pre_backward(size_t index, int64_t output) {
  if (in_backward_.contains(index)) return;
  finish_others(index, output);
  // A recomputation does not call end_whole_units(), because it may recompute several units whose backward is still to
  // come.
  end_whole_units(forwards_.take(index));
  let_others_pass(index);
  finish_others(index, output);
  in_backward_.emplace(index, output);
  recomputed_.erase(index);
  demand_in_backward(index);
}

void Executor::finish_others(size_t index, std::optional<int64_t> output) {
  for (auto next = in_backward_.begin(); next != in_backward_.end();) {
    const auto [other, begun_with] = *next;
    if (contains(other, index) || (output && begun_with == output)) {
      // If neither unit encloses the other, both have returned the same tensor. If the forward of `index` ended first,
      // `other` got this tensor as its input and returned it. So `other` has no gradients on this rank. Its end is
      // reported now, because other ranks may have gradients of `other`, and wait for their reduction.
      const bool is_before = !contains(other, index) && !contains(index, other) &&
                             forwards_.time_of_end(index) < forwards_.time_of_end(other);
      if (is_before) callbacks_.on_unit_backward_ended(other);
      ++next;
      continue;
    }
    next = in_backward_.erase(next);
    reshard(other);
    callbacks_.on_unit_backward_ended(other);
  }
}

void Executor::begin_backward() {
  backward_begun_ = true;
  order_->begin_backward();
}

// Reports the end of the backward of each of `units`, unless the unit is kSharded or its backward is running.
void Executor::end_whole_units(const std::vector<size_t>& units) {
  for (const size_t unit : units)
    if (units_[unit]->placement() != Placement::kSharded && !in_backward_.contains(unit))
      callbacks_.on_unit_backward_ended(unit);
}

// Called before this rank's backward uses `index`. Begins the backward. If the unit is kSharded, also takes part in the
// gathers that other ranks need earlier.
void Executor::let_others_pass(size_t index) {
  begin_backward();
  if (!callbacks_.max_over_ranks || units_[index]->placement() != Placement::kSharded) return;
  if (!order_->upcoming().empty()) {
    const auto before = order_->upcoming_before(index);
    for (const size_t other : std::vector(before.begin(), before.end())) stand_in_for(other);
    return;
  }
  while (units_[index]->is_sharded() && agree_on_next(index) != index) {
  }
}

// Gathers the unit and advances the order as if this rank's backward needed the unit. So this rank makes the same
// gathers as the ranks whose backward does need it.
void Executor::stand_in_for(size_t index) {
  if (!in_backward_.contains(index)) {
    finish_others(index, std::nullopt);
    in_backward_.emplace(index, std::nullopt);
    recomputed_.erase(index);
  }
  demand(index);
}

// Agrees with the other ranks on the unit to gather next. `mine` is the unit that this rank needs next, or nothing.
// Among the units that ranks need, they choose the one whose forward ended last. If `mine` is another unit or nothing,
// takes part in the gather of the chosen unit. In this case also reports the end of its backward, unless the backward
// is running on this rank. Returns the chosen unit, or nothing if no rank needs one.
std::optional<size_t> Executor::agree_on_next(std::optional<size_t> mine) {
  constexpr int64_t kStride = int64_t{1} << 32;
  const int64_t next =
      callbacks_.max_over_ranks(mine ? forwards_.time_of_end(*mine) * kStride + int64_t(*mine) + 1 : 0);
  const std::optional<size_t> agreed = next == 0 ? std::nullopt : std::optional(size_t(next % kStride - 1));
  if (!agreed || agreed == mine) return agreed;
  order_->advance(*agreed);
  units_[*agreed]->take_part();
  // The end is reported here, because the other ranks may wait for this unit's reduction before they agree again.
  if (!in_backward_.contains(*agreed)) callbacks_.on_unit_backward_ended(*agreed);
  return agreed;
}

void Executor::let_all_others_pass() {
  backward_begun_ = false;
  end_whole_units(forwards_.take_all());
  if (!callbacks_.max_over_ranks) return;
  if (order_->is_recording()) {
    finish_all();  // other ranks may wait for the reductions of these units before they agree on the next unit
    while (agree_on_next(std::nullopt)) {
    }
    return;
  }
  while (!order_->upcoming().empty()) stand_in_for(order_->upcoming().front());
}

void Executor::finish_all() {
  for (const auto& [index, output] : std::exchange(in_backward_, {})) {
    reshard(index);
    callbacks_.on_unit_backward_ended(index);
  }
}

void Executor::end_units_of_backward() {
  let_all_others_pass();
  finish_all();
  for (const size_t index : std::exchange(recomputed_, {})) reshard(index);
}

void Executor::end_backward() {
  begin_backward();
  end_units_of_backward();
  order_->end_pass();
  // Reshards the units that were gathered ahead and never used.
  for (size_t index = 0; index < units_.size(); ++index) {
    if (units_[index]->placement() == Placement::kSharded) reshard(index);
  }
}

void Executor::reshard(size_t index) {
  Unit& unit = *units_[index];
  if (holds_[index] == 0 && unit.placement() == Placement::kSharded) unit.reshard();
}

// Returns whether a forward or backward of the unit is running, or whether a recomputation has unsharded the unit for a
// backward to come. If so, the unit must stay unsharded, and is resharded when that forward or backward ends.
bool Executor::is_running(size_t index) const {
  return in_backward_.contains(index) || recomputed_.contains(index) || forwards_.is_running(index);
}

void Executor::hold(size_t index) {
  if (holds_[index]++ == 0 && !is_running(index)) units_[index]->begin_hold();
  units_[index]->unshard();
  units_[index]->wait();
}

void Executor::release(size_t index) {
  if (--holds_[index] > 0) return;
  const bool is_done = !is_running(index);
  units_[index]->end_hold(/*leaves=*/is_done);
  if (is_done) reshard(index);
}

void Executor::end_gather(size_t index) {
  units_[index]->wait();
  reshard(index);
  units_[index]->await_readers();
}

void Executor::end_gathers_ahead() {
  for (size_t index = 0; index < units_.size(); ++index) {
    if (!units_[index]->is_unsharding()) continue;
    units_[index]->wait();
    reshard(index);
  }
}

void Executor::update_and_refresh(std::span<const size_t> order, const std::function<void(size_t)>& update) {
  size_t finished = 0;
  for (size_t started = 0; started < order.size(); ++started) {
    {
      const NamedRange named("update", units_[order[started]]->layout().name);
      update(order[started]);
    }
    units_[order[started]]->start_refresh();
    if (started >= kRefreshesUnderWay) units_[order[finished++]]->finish_refresh();
  }
  while (finished < order.size()) units_[order[finished++]]->finish_refresh();
  for (size_t index = 0; index < units_.size(); ++index) {
    if (holds_[index] == 0) continue;
    units_[index]->unshard();
    units_[index]->wait();
  }
}

}  // namespace zeroshard

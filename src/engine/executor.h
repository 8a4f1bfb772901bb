#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "schedule/execution_order.h"
#include "unit/unit.h"

namespace zeroshard {

// When units are unsharded and resharded. Fed with the events of forward and backward by the engine; knows nothing of
// gradients or autograd.
//
// Note [When a unit is resharded]
// After forward: at once, unless the recorded order says that it is needed next (the last unit's backward follows its
// forward). In backward: when the backward of another unit begins. Autograd runs later-created nodes first, so by then
// nothing of this unit is left to run, frozen parameters included; counting gradients would be too early for those.
// An enclosing unit is not done: one whose modules contain the other unit's modules, or in whose forward the other was
// called (a tied parameter belongs to one unit, and is used within others). Recomputation (activation checkpointing)
// calls forward hooks inside backward: then a unit stays until another unit is recomputed or its own backward has
// passed.
//
// Note [Ranks whose backward passes need other units]
// A module may enter the loss on some ranks only, and a backward may fail on one rank. The other ranks continue, and
// every gather needs all ranks. If the order of a pass is known, a rank goes through all of it: before a later unit it
// takes part in the gathers of the units that it does not need itself, and at the end in the remaining ones. While an
// order is recorded, ranks agree before each gather of a backward on the next unit, with one small all-reduce per unit.
// A rank that has taken part reports the unit's end before it waits again, because others may wait for its part in the
// reduction. It also reports units that stay whole, at every stage: when the backward of a unit begins, units with a
// later forward whose backward has not come are no longer needed. So a bucket of a unit that some rank needs is
// launched after equally many ends at every stage, and sums are rounded alike. A bucket of a unit that no rank needs
// gets these ends only where the unit is whole. One case remains: a unit that no rank needed in the recorded pass. Then
// the ranks' gathers differ, which is an error.
class Executor {
 public:
  struct Callbacks {
    // Unit u's backward has ended on this rank; or on other ranks, if this rank does not need u.
    std::function<void(size_t)> on_unit_done;
    // The units that will be gathered next, nearest first, as far as that is known. Null where nobody asks.
    std::function<void(std::span<const size_t> units)> on_upcoming;
    // The largest of all ranks' numbers. Collective. Null where no unit is sharded.
    std::function<int64_t(int64_t)> max_over_ranks;
  };

  // `parents[u]`: the unit whose modules contain unit u's, or -1. Up to `prefetch_depth` of units such as this are
  // gathered ahead of their use.
  Executor(std::vector<std::unique_ptr<Unit>> units, const std::vector<int>& parents,
           const std::function<int(const UnitLayout&)>& prefetch_depth, Callbacks callbacks);

  Unit& unit(size_t index) { return *units_.at(index); }
  size_t size() const { return units_.size(); }
  // Whether some unit is: then backward passes of ranks wait for each other at each.
  bool is_sharded() const { return bool(callbacks_.max_over_ranks); }

  void begin_pass(bool training);
  void pre_forward(size_t unit, bool recomputing);
  void post_forward(size_t unit, bool recomputing);
  // `output`: the number of the tensor whose gradient is known (BackwardHooks). A unit may return its input itself, or
  // the result of an inner unit. Several units then begin their backward with the same tensor, and none of them is done
  // before the others.
  void pre_backward(size_t unit, int64_t output);
  // Before the first event of a backward: a rank may have none.
  void begin_backward();
  // Collective where units are sharded.
  void end_backward();
  // The last pass has failed, on some rank: the order of the one before it stays.
  void forget_pass() { order_->forget(); }
  // Whether a backward has begun and not ended.
  bool is_in_backward() const { return backward_begun_; }
  // Whether the unit's backward has: until it ends the unit is unsharded.
  bool is_in_backward(size_t unit) const { return in_backward_.contains(unit); }
  // As ExecutionOrder::needed(), of the pass that runs or ran last.
  std::span<const size_t> needed() const { return order_->needed(); }

  // Keeps a unit unsharded whatever happens, until as many release() calls. A unit whose forward or backward goes on
  // then stays unsharded until that has ended.
  void hold(size_t unit);
  void release(size_t unit);
  // Before the shards of a unit are written between passes, on all ranks: what a pass that ended early has gathered is
  // dropped, or is there if the unit stays whole, and no rank reads the shards for it any more.
  void end_gather(size_t unit);
  // Before ranks agree on a step: every gather ahead that was begun, as by a forward without a backward, has been
  // waited for on every rank when they have. Units of which nobody holds the values are sharded again.
  void end_gathers_ahead();
  // Lets the optimizer write the shards: calls `update(u)` for each unit in `order`, which has every unit once and is
  // the same on all ranks. The updated values of a unit travel to the other ranks while the next units are updated.
  // Units that are held have the new values afterwards.
  void refresh(std::span<const size_t> order, const std::function<void(size_t)>& update);

 private:
  void demand(size_t unit);
  void reshard(size_t unit);
  bool is_running(size_t unit) const;
  bool contains(size_t outer, size_t inner) const { return around_[inner].contains(outer); }
  void finish_others(size_t unit, std::optional<int64_t> output);
  void finish_all();
  // Note [Ranks whose backward passes need other units].
  void demand_in_backward(size_t unit);
  void let_others_pass(size_t unit);
  std::ptrdiff_t last_forward(size_t unit) const;
  void end_whole_units(std::ptrdiff_t first);
  void skip(size_t unit);
  std::optional<size_t> agree_on_next(std::optional<size_t> mine);
  void let_all_others_pass();
  void end_units_of_backward();

  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::set<size_t>> around_;  // by unit: itself and those around it, by modules or as forward showed
  std::vector<int> prefetch_depth_;       // by unit
  Callbacks callbacks_;
  ExecutionOrder training_, evaluation_;
  ExecutionOrder* order_ = &evaluation_;  // of the pass that runs
  std::vector<size_t> in_forward_;        // units whose forward runs, outermost first
  std::vector<int64_t> finished_;         // when each unit's last forward ended: counts from 1
  int64_t forwards_ = 0;
  std::vector<size_t> awaited_;  // units in the order in which their forwards ended, whose backward has not come
  bool backward_begun_ = false;
  // Units whose backward has begun and not ended, and the output it began with: none where another rank's began.
  std::map<size_t, std::optional<int64_t>> in_backward_;
  std::set<size_t> recomputed_;  // unsharded by a recomputation, backward not begun
  std::vector<int> holds_;
};

}  // namespace zeroshard

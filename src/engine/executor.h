#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "engine/forwards.h"
#include "schedule/execution_order.h"
#include "unit/unit.h"

namespace zeroshard {

// Decides when units are unsharded and resharded. The engine tells the executor when a pass begins and ends, when the
// forward of a unit begins and ends, and when the backward of a unit begins. The executor finds out when the backward
// of a unit has ended, and reports it. It knows nothing about gradients or autograd.
//
// Note [When a unit is resharded]
// These rules are for kSharded units that nobody holds (see hold()). Other units are not resharded during a pass. A
// unit encloses another unit if its modules contain the other's modules, or if the other was called in its forward.
// (Such a call happens if a tied parameter belongs to the other unit.)
//
// In forward, a unit is resharded when none of its forwards is running any more, unless the recorded order says that it
// is needed next. (For example, the backward of the last unit follows the unit's own forward.)
//
// In backward, a unit is resharded when the backward of another unit begins. Autograd runs later-created nodes first,
// so when the other backward begins, no node of the unit is left to run, not even one that reads frozen parameters. (If
// the unit were resharded when its last gradient arrives, such nodes could still be left.) There are two exceptions, in
// which the unit stays unsharded: it encloses the other unit, or both backwards begin with the same tensor (see
// pre_backward()).
//
// Recomputation (activation checkpointing) calls forward hooks inside backward. A recomputed unit stays unsharded until
// its own backward has ended. There is one exception: if another unit is recomputed before that backward begins, the
// first unit is resharded, unless it encloses the other one.
//
// Note [Ranks whose backward passes need other units]
// A module may enter the loss on some ranks only, and a backward may fail on one rank. The other ranks then continue.
// Every gather needs all ranks, so a rank also takes part in gathers of units that it does not need itself.
//
// When the backward of a unit has ended, the executor reports the unit: it calls Callbacks::on_unit_backward_ended,
// after which the unit's gradients can be reduced. Every reduction needs all ranks, too, so a rank also reports units
// whose backward only other ranks need.
//
// If a pass follows an order that was recorded before, each rank goes through the whole order. Before its backward
// gathers a unit, a rank takes part in the gathers of all units that come before this one in the order. At the end of
// its backward, it takes part in all remaining gathers.
//
// If there is no order to follow, the pass records one. The ranks then agree on the next unit before each gather of a
// backward, with one small all-reduce per unit. A rank that needs another unit, or none, takes part in the gather of
// the agreed unit. It also reports the agreed unit, unless the backward of this unit is running on the rank. It does so
// before the next all-reduce, because other ranks may wait for the reduction of the agreed unit before they take part
// in that all-reduce.
//
// Units that stay whole (kReplicated and kPersistent) need no gather in a backward. So no gather tells a rank which of
// them other ranks need. Therefore each rank also reports all units that stay whole and whose backward its pass skips.
// When the backward of a unit begins, the pass has skipped all units whose forward ended later and whose backward has
// not begun. When the whole backward ends, the pass has skipped all units whose backward has not begun. Because of
// these reports, the reduction of a unit that some rank needs is launched after equally many reports at every ZeRO
// stage, so sums are rounded alike. (The stages differ in one case: while a pass records an order, a unit that no rank
// needs is reported only if it stays whole.)
//
// One case remains: some ranks, but not all, need a unit that no rank needed in the recorded pass. The gathers of the
// ranks then differ, which is an error.
class Executor {
 public:
  struct Callbacks {
    // Called with a unit when its backward has ended on this rank. Also called for units that this rank's backward does
    // not need: see Note [Ranks whose backward passes need other units].
    std::function<void(size_t)> on_unit_backward_ended;
    // Called when a forward needs a unit, or a backward needs a kSharded one. `units` are the units that the pass will
    // probably need after that unit, nearest first. There are none while no order is known. May be null.
    std::function<void(std::span<const size_t> units)> on_upcoming;
    // Returns the maximum of a number over the ranks with which this rank gathers. Collective. Null if no unit is
    // kSharded.
    std::function<int64_t(int64_t)> max_over_ranks;
  };

  // `parents[u]` is the unit whose modules contain the modules of unit u, or -1. `prefetch_depth` returns a limit for a
  // unit's layout. The unit is gathered ahead of its use only if fewer units than this limit are already being gathered
  // ahead (see gather_ahead()).
  Executor(std::vector<std::unique_ptr<Unit>> units, const std::vector<int>& parents,
           const std::function<int(const UnitLayout&)>& prefetch_depth, Callbacks callbacks);

  Unit& unit(size_t index) { return *units_.at(index); }
  size_t size() const { return units_.size(); }
  // Returns all parameters, in the order of the units.
  std::vector<ParamPlace> params() const;
  const ParamSpec& spec(ParamPlace place) const { return units_.at(place.unit)->layout().params.at(place.param); }
  // Returns Unit::tensors() of a parameter.
  const std::vector<at::Tensor>& tensors(ParamPlace place) const { return units_.at(place.unit)->tensors(place.param); }
  // Returns whether some unit is kSharded, whatever its present state. If so, the ranks wait for one another at each
  // gather of a backward pass.
  bool has_sharded_units() const { return bool(callbacks_.max_over_ranks); }

  void begin_pass(bool training);
  void pre_forward(size_t unit, bool recomputing);
  void post_forward(size_t unit, bool recomputing);
  // Begins the backward of a unit, because the gradient of one of its outputs is known. Does nothing if the backward of
  // the unit is already running. `output` is the number that BackwardHooks has given this output. If a unit returns its
  // input itself, or the result of an inner unit, several units have the same tensor as an output. Their backwards
  // begin with the same `output`, and end together.
  void pre_backward(size_t unit, int64_t output);
  // Call it at the beginning of each backward. pre_backward() also begins the backward, but a rank whose loss depends
  // on no unit never calls pre_backward().
  void begin_backward();
  // Ends the backward of every unit, and reshards all kSharded units that nobody holds. Collective if some unit is
  // kSharded.
  void end_backward();
  // Forgets the order of the current pass or, between passes, the order of the last pass. Call it if this pass failed
  // on some rank. Later passes are then predicted from the order of the pass before the failed one.
  void forget_pass() { order_->forget(); }
  // Returns whether a backward has begun and not ended.
  bool is_in_backward() const { return backward_begun_; }
  // Returns whether the backward of this unit has begun and not ended. Meanwhile the unit is unsharded.
  bool is_in_backward(size_t unit) const { return in_backward_.contains(unit); }
  // Returns ExecutionOrder::needed() of the current or last pass.
  std::span<const size_t> needed() const { return order_->needed(); }

  // hold() keeps a unit unsharded until release() was called as often as hold(). If the unit's forward or backward is
  // running at the last release(), the unit stays unsharded until this forward or backward ends.
  void hold(size_t unit);
  void release(size_t unit);
  // Call it on all ranks before the shards of a unit are written between passes. Waits for the gather of the unit, if a
  // pass has left it running. Reshards the unit, unless it stays whole or is held. When it returns, no rank reads this
  // rank's shards for a gather any more.
  void end_gather(size_t unit);
  // Call it before ranks agree on a step. Waits for every gather that still runs. Such a gather was started ahead of a
  // use that never came, for example by a forward without a backward. Reshards the units of these gathers, unless they
  // stay whole or are held.
  void end_gathers_ahead();
  // Lets the optimizer write the shards, which no rank may still read for a gather (see end_gather()). Calls
  // `update(u)` for each unit in `order`, which contains every unit once and is the same on all ranks. After the update
  // of a unit, the ranks exchange its new values if the unit needs that (see Unit::start_refresh()), while the next
  // units are updated. Units that are held are unsharded with the new values afterwards. Collective.
  void update_and_refresh(std::span<const size_t> order, const std::function<void(size_t)>& update);

 private:
  void demand(size_t unit);
  void reshard(size_t unit);
  bool is_running(size_t unit) const;
  bool contains(size_t outer, size_t inner) const { return around_[inner].contains(outer); }
  void finish_others(size_t unit, std::optional<int64_t> output);
  void finish_all();
  // See Note [Ranks whose backward passes need other units].
  void demand_in_backward(size_t unit);
  void let_others_pass(size_t unit);
  void end_whole_units(const std::vector<size_t>& units);
  void stand_in_for(size_t unit);
  std::optional<size_t> agree_on_next(std::optional<size_t> mine);
  void let_all_others_pass();
  void end_units_of_backward();

  std::vector<std::unique_ptr<Unit>> units_;
  // For each unit: itself and the units that enclose it (see Note [When a unit is resharded]).
  std::vector<std::set<size_t>> around_;
  std::vector<int> prefetch_depth_;  // by unit
  Callbacks callbacks_;
  ExecutionOrder training_, evaluation_;
  ExecutionOrder* order_ = &evaluation_;  // order of the current pass
  Forwards forwards_;
  bool backward_begun_ = false;
  // Units whose backward is running, each with the number of the output that began it. A unit whose backward only other
  // ranks need has no number.
  std::map<size_t, std::optional<int64_t>> in_backward_;
  std::set<size_t> recomputed_;  // units that a recomputation has unsharded, and whose backward has not begun
  std::vector<int> holds_;
};

}  // namespace zeroshard

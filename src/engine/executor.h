#pragma once
#include <functional>
#include <map>
#include <memory>
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
// A unit around the other is not done: one whose modules contain the other's, or in whose forward the other was called
// (a tied parameter belongs to one unit, and is used within others). Recomputation (activation checkpointing) calls
// forward hooks inside backward: then a unit stays until another unit is recomputed or its own backward has passed.
class Executor {
 public:
  // `parents[u]`: the unit whose modules contain unit u's, or -1. Up to `prefetch_depth` units are gathered ahead of
  // their use. `on_unit_done(u)` is called when u's backward ended.
  Executor(std::vector<std::unique_ptr<Unit>> units, const std::vector<int>& parents, int prefetch_depth,
           std::function<void(size_t)> on_unit_done);

  Unit& unit(size_t index) { return *units_.at(index); }
  size_t size() const { return units_.size(); }

  void begin_pass(bool training);
  void pre_forward(size_t unit, bool recomputing);
  void post_forward(size_t unit, bool recomputing);
  // `output`: identifies the tensor whose gradient is known. A unit may return its very input, or what a unit inside it
  // returned: then several units begin their backward with one tensor, and none of them is done before the others.
  void pre_backward(size_t unit, const void* output);
  void end_backward();
  // As ExecutionOrder::needed(), of the pass that runs or ran last.
  std::span<const size_t> needed() const { return order_->needed(); }

  // Keeps a unit unsharded whatever happens, until as many release() calls.
  void hold(size_t unit);
  void release(size_t unit);
  // The optimizer wrote the shards.
  void refresh();

 private:
  void demand(size_t unit);
  void reshard(size_t unit);
  bool contains(size_t outer, size_t inner) const { return around_[inner].contains(outer); }
  void finish_others(size_t unit, const void* output);

  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::set<size_t>> around_;  // by unit: itself and those around it, by modules or as forward showed
  int prefetch_depth_;
  std::function<void(size_t)> on_unit_done_;
  ExecutionOrder training_, evaluation_;
  ExecutionOrder* order_ = &evaluation_;  // of the pass that runs
  std::vector<size_t> in_forward_;        // units whose forward runs, outermost first
  // Units whose backward has begun and not ended, and the output it began with.
  std::map<size_t, const void*> in_backward_;
  std::set<size_t> recomputed_;  // unsharded by a recomputation, backward not begun
  std::vector<int> holds_;
};

}  // namespace zeroshard

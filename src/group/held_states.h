#pragma once
#include <memory>
#include <utility>

#include "base/write_hold.h"
#include "group/optimizer_states.h"

namespace zeroshard {

// States that a save may read while training goes on: who borrows them to write waits for it.
class HeldStates final : public OptimizerStates {
 public:
  // `states` have readers.
  HeldStates(std::unique_ptr<OptimizerStates> states, WriteHold::WhileWaiting while_waiting)
      : states_(std::move(states)), hold_(std::move(while_waiting)) {}

  void lend(Range range, Access access, const Borrower& use) override {
    if (access != Access::kRead) hold_.await_readers();
    states_->lend(range, access, use);
  }
  void lend_one(Range range, int state, Access access, const BorrowerOfOne& use) override {
    if (access != Access::kRead) hold_.await_readers();
    states_->lend_one(range, state, access, use);
  }
  void will_need(Range range) override { states_->will_need(range); }
  const StateTensors* in_memory() const override { return states_->in_memory(); }
  void read_until(c10::Event event) override { states_->read_until(std::move(event)); }
  WriteHold* hold() override { return &hold_; }
  std::unique_ptr<StateReader> reader(int state) override { return states_->reader(state); }

 private:
  std::unique_ptr<OptimizerStates> states_;
  WriteHold hold_;
};

}  // namespace zeroshard

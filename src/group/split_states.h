#pragma once
#include <memory>
#include <utility>

#include "group/optimizer_states.h"

namespace zeroshard {

// States in two places: those of the elements before `border` are in `first`, and the others, counted from there on, in
// `rest`. They have readers where the first has, and the rest is in memory of the CPU.
class SplitStates final : public OptimizerStates {
 public:
  SplitStates(std::unique_ptr<OptimizerStates> first, int64_t border, std::unique_ptr<OptimizerStates> rest);
  void lend(Range range, Access access, const Borrower& use) override;
  void lend_one(Range range, int state, Access access, const BorrowerOfOne& use) override;
  void will_need(Range range) override;
  std::unique_ptr<StateReader> reader(int state) override;
  // Of the first: copies of a device read those alone.
  void read_until(c10::Event event) override { first_->read_until(std::move(event)); }

 private:
  std::unique_ptr<OptimizerStates> first_, rest_;
  int64_t border_;
};

}  // namespace zeroshard

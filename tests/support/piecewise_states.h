#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "group/optimizer_states.h"

namespace zeroshard::testing {

// Keeps states where nobody can reach them, and lends copies of at most `piece` elements at a time. A copy is NaN after
// the call, and is taken back only where the borrower said that it would modify it.
class PiecewiseStates : public OptimizerStates {
 public:
  PiecewiseStates(StateTensors kept, int64_t piece) : kept_(std::move(kept)), piece_(piece) {}

  void lend(Range range, Access access, const Borrower& use) override {
    for (int64_t begin = range.begin; begin < range.end; begin += piece_) {
      const Range part{begin, std::min(begin + piece_, range.end)};
      const StateTensors own = kept_.slice(part.begin, part.end);
      StateTensors lent;
      if (own.master.defined()) lent.master = own.master.clone();
      for (const at::Tensor& moment : own.moments) lent.moments.push_back(moment.clone());
      use(part, lent);
      const auto end = [&](const at::Tensor& to, const at::Tensor& from) {
        if (!to.defined()) return;
        if (access != Access::kRead) to.copy_(from);
        from.fill_(std::numeric_limits<float>::quiet_NaN());
      };
      end(own.master, lent.master);
      for (size_t slot = 0; slot < own.moments.size(); ++slot) end(own.moments[slot], lent.moments[slot]);
    }
  }

  const StateTensors& kept() const { return kept_; }

 private:
  StateTensors kept_;
  int64_t piece_;
};

}  // namespace zeroshard::testing

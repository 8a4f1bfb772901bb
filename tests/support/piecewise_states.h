#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "store/array.h"

namespace zeroshard::testing {

// Keeps states where nobody can reach them, and lends copies of at most `piece` elements at a time. A copy is spoilt
// after the call, and is taken back only where the borrower said that it would modify it.
class PiecewiseStorage final : public Storage {
 public:
  PiecewiseStorage(const StateTensors& kept, int64_t piece) : kept_(kept.moments), piece_(piece) {
    if (kept.master.defined()) kept_.insert(kept_.begin(), kept.master);
  }

  void lend(Range range, std::optional<int> column, Access access, const Use& use) override {
    for (int64_t begin = range.begin; begin < range.end; begin += piece_) {
      const Range part{begin, std::min(begin + piece_, range.end)};
      std::vector<at::Tensor> own, lent;
      for (size_t i = 0; i < kept_.size(); ++i)
        if (!column || size_t(*column) == i) own.push_back(kept_[i].slice(0, part.begin, part.end));
      for (const at::Tensor& each : own) lent.push_back(each.clone());
      use(part, lent);
      for (size_t i = 0; i < own.size(); ++i) {
        if (access != Access::kRead) own[i].copy_(lent[i]);
        lent[i].is_floating_point() ? lent[i].fill_(std::numeric_limits<float>::quiet_NaN()) : lent[i].fill_(255);
      }
    }
  }
  std::unique_ptr<ArrayReader> reader(int) override { return nullptr; }
  int64_t numel() const override { return kept_.at(0).numel(); }
  at::ScalarType type(int column) const override { return kept_.at(size_t(column)).scalar_type(); }
  void read_on(const SideStream&) override {}

 private:
  std::vector<at::Tensor> kept_;
  int64_t piece_;
};

inline std::unique_ptr<Array> piecewise_states(const StateTensors& kept, int64_t piece) {
  return std::make_unique<Array>(std::make_unique<PiecewiseStorage>(kept, piece),
                                 Array::Options{.has_master = kept.master.defined(), .scales = kept.scales});
}

}  // namespace zeroshard::testing

#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace zeroshard {

// Counts the gradients that a backward pass brings for each parameter of a group.
class GradientCounts {
 public:
  explicit GradientCounts(size_t params) : expected_(params, 1), came_(params, 0), missing_(params) {}

  void add(size_t index) {
    if (++came_[index] == expected_[index]) --missing_;
  }
  // Returns whether every parameter has at least as many gradients in this pass as are expected (see end_backward()).
  // In the first pass, one is expected.
  bool is_complete() const { return missing_ == 0; }

  // Ends this pass. The next passes are expected to bring as many gradients of each parameter as this one. A parameter
  // without gradients in this pass keeps its expected number.
  void end_backward() {
    for (size_t i = 0; i < came_.size(); ++i)
      if (came_[i] > 0) expected_[i] = came_[i];
    discard();
  }
  // Forgets the gradients of this pass, and leaves the expected numbers as they are.
  void discard() {
    std::fill(came_.begin(), came_.end(), 0);
    missing_ = came_.size();
  }

 private:
  std::vector<int> expected_, came_;
  size_t missing_;  // parameters with fewer gradients than expected
};

}  // namespace zeroshard

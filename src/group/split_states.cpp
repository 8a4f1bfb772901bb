#include "group/split_states.h"

#include <algorithm>
#include <utility>

namespace zeroshard {
namespace {

Range before(Range range, int64_t border) {
  return {std::min(range.begin, border), std::min(range.end, border)};
}

// As the states behind the border count.
Range behind(Range range, int64_t border) {
  return {std::max(range.begin, border) - border, std::max(range.end, border) - border};
}

Range moved(Range range, int64_t by) {
  return {range.begin + by, range.end + by};
}

class SplitReader final : public StateReader {
 public:
  SplitReader(std::unique_ptr<StateReader> first, int64_t border, at::Tensor rest)
      : first_(std::move(first)), border_(border), rest_(std::move(rest)) {}
  void read(Range range, float* to) override {
    if (const Range part = before(range, border_); part.size() > 0) {
      first_->read(part, to);
      to += part.size();
    }
    const Range part = behind(range, border_);
    if (part.size() == 0) return;
    if (rest_.scalar_type() == at::kFloat) {
      std::copy_n(rest_.const_data_ptr<float>() + part.begin, part.size(), to);
    } else {
      std::copy_n(rest_.const_data_ptr<at::BFloat16>() + part.begin, part.size(), to);
    }
  }

 private:
  std::unique_ptr<StateReader> first_;
  int64_t border_;
  at::Tensor rest_;
};

}  // namespace

SplitStates::SplitStates(std::unique_ptr<OptimizerStates> first, int64_t border, std::unique_ptr<OptimizerStates> rest)
    : first_(std::move(first)), rest_(std::move(rest)), border_(border) {}

void SplitStates::lend(Range range, Access access, const Borrower& use) {
  if (const Range part = before(range, border_); part.size() > 0) first_->lend(part, access, use);
  if (const Range part = behind(range, border_); part.size() > 0)
    rest_->lend(part, access, [&](Range lent, const StateTensors& tensors) { use(moved(lent, border_), tensors); });
}

void SplitStates::lend_one(Range range, int state, Access access, const BorrowerOfOne& use) {
  if (const Range part = before(range, border_); part.size() > 0) first_->lend_one(part, state, access, use);
  if (const Range part = behind(range, border_); part.size() > 0)
    rest_->lend_one(part, state, access,
                    [&](Range lent, const at::Tensor& values) { use(moved(lent, border_), values); });
}

void SplitStates::will_need(Range range) {
  if (const Range part = before(range, border_); part.size() > 0) first_->will_need(part);
  if (const Range part = behind(range, border_); part.size() > 0) rest_->will_need(part);
}

std::unique_ptr<StateReader> SplitStates::reader(int state) {
  return std::make_unique<SplitReader>(first_->reader(state), border_, rest_->in_memory()->at(state));
}

}  // namespace zeroshard

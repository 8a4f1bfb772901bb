#include "group/optimizer_states.h"

#include <utility>

namespace zeroshard {

StateTensors StateTensors::slice(int64_t begin, int64_t end) const {
  StateTensors part;
  if (master.defined()) part.master = master.slice(0, begin, end);
  for (const at::Tensor& moment : moments) part.moments.push_back(moment.slice(0, begin, end));
  return part;
}

void OptimizerStates::lend_one(Range range, int state, Access access, const BorrowerOfOne& use) {
  const Access of_all = access == Access::kRead ? Access::kRead : Access::kModify;  // the others stay as they are
  lend(range, of_all, [&](Range part, const StateTensors& tensors) { use(part, tensors.at(state)); });
}

MemoryStates::MemoryStates(StateTensors tensors)
    : tensors_(std::move(tensors)),
      uses_(tensors_.master.defined()   ? tensors_.master.device()
            : !tensors_.moments.empty() ? tensors_.moments.front().device()
                                        : at::kCPU) {}

void MemoryStates::lend(Range range, Access access, const Borrower& use) {
  if (range.size() == 0) return;
  access == Access::kRead ? uses_.share() : uses_.take();
  use(range, tensors_.slice(range.begin, range.end));
  if (access == Access::kRead) uses_.end();
}

}  // namespace zeroshard

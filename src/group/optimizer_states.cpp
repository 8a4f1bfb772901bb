#include "group/optimizer_states.h"

#include <utility>

namespace zeroshard {

StateTensors StateTensors::slice(int64_t begin, int64_t end) const {
  StateTensors part;
  if (master.defined()) part.master = master.slice(0, begin, end);
  for (const at::Tensor& moment : moments) part.moments.push_back(moment.slice(0, begin, end));
  return part;
}

MemoryStates::MemoryStates(StateTensors tensors)
    : tensors_(std::move(tensors)),
      uses_(tensors_.master.defined()   ? tensors_.master.device()
            : !tensors_.moments.empty() ? tensors_.moments.front().device()
                                        : at::kCPU) {}

void MemoryStates::lend(Range range, Access access, const Borrower& use) {
  if (range.size() == 0) return;
  access == Access::kModify ? uses_.take() : uses_.share();
  use(range, tensors_.slice(range.begin, range.end));
  if (access == Access::kRead) uses_.end();
}

}  // namespace zeroshard

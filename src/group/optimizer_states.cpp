#include "group/optimizer_states.h"

namespace zeroshard {

StateTensors StateTensors::slice(int64_t begin, int64_t end) const {
  StateTensors part;
  if (master.defined()) part.master = master.slice(0, begin, end);
  for (const at::Tensor& moment : moments) part.moments.push_back(moment.slice(0, begin, end));
  return part;
}

void MemoryStates::lend(Range range, Access, const Borrower& use) {
  if (range.size() > 0) use(range, tensors_.slice(range.begin, range.end));
}

}  // namespace zeroshard

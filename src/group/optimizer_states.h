#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "layout/shard_layout.h"

namespace zeroshard {

// Optimizer states of neighbouring elements: 1-D fp32 tensors, all of the same length.
struct StateTensors {
  at::Tensor master;                // undefined: the parameters are fp32, and their own master weights
  std::vector<at::Tensor> moments;  // by slot

  StateTensors slice(int64_t begin, int64_t end) const;
};

// Keeps the optimizer states of one group: of the elements that this rank updates, which are counted from 0 here. Who
// needs states borrows a range of them, so that they may lie anywhere. One thread at a time uses it.
class OptimizerStates {
 public:
  enum class Access : uint8_t { kRead, kModify };
  // `part`: the elements that `tensors` hold. The tensors are valid during the call only.
  using Borrower = std::function<void(Range part, const StateTensors& tensors)>;

  virtual ~OptimizerStates() = default;
  // Calls `use` for consecutive parts that make up `range`; how many there are is the keeper's choice. With kModify the
  // keeper takes back what `use` has written. An exception of `use` passes through; what it wrote to that part then
  // may be lost or kept.
  virtual void lend(Range range, Access access, const Borrower& use) = 0;
  // All elements, where they are in memory for the whole run; null where they are not. For those who need an address.
  virtual const StateTensors* in_memory() const { return nullptr; }
};

// States in the memory of a device. They do not own the memory.
class MemoryStates : public OptimizerStates {
 public:
  explicit MemoryStates(StateTensors tensors) : tensors_(std::move(tensors)) {}
  void lend(Range range, Access access, const Borrower& use) override;
  const StateTensors* in_memory() const override { return &tensors_; }

 private:
  StateTensors tensors_;
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/write_hold.h"
#include "device/streams.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// The master weights among an element's states, where the moments have the numbers of their slots.
inline constexpr int kMasterWeights = -1;

// Optimizer states of neighbouring elements: 1-D tensors, all of the same length. Master weights are fp32, and moments
// have the dtype of their placement.
struct StateTensors {
  at::Tensor master;                // undefined: the parameters are fp32, and their own master weights
  std::vector<at::Tensor> moments;  // by slot

  StateTensors slice(int64_t begin, int64_t end) const;
  const at::Tensor& at(int state) const { return state == kMasterWeights ? master : moments.at(size_t(state)); }
};

// Reads one state of a group, as fp32, on a thread of its own, while another thread lends states and nobody writes to
// this one.
class StateReader {
 public:
  virtual ~StateReader() = default;
  virtual void read(Range range, float* to) = 0;
};

// Keeps one group's optimizer states for the elements that this rank updates. Positions count these elements from 0.
// Code that needs states borrows a range, so that the states may lie anywhere. Only one thread may use it at a time.
class OptimizerStates {
 public:
  // kOverwrite: the borrower writes every element, and what was there before is not fetched.
  enum class Access : uint8_t { kRead, kModify, kOverwrite };
  // `part`: the elements that `tensors` hold. The tensors are valid during the call only.
  using Borrower = std::function<void(Range part, const StateTensors& tensors)>;
  using BorrowerOfOne = std::function<void(Range part, const at::Tensor& values)>;

  virtual ~OptimizerStates() = default;
  // Calls `use` for consecutive parts that make up `range`. The implementation chooses the number of parts. Except with
  // kRead it keeps what `use` has written. An exception of `use` passes through; then the writes to that part may be
  // lost or kept, and with kOverwrite its values are undefined.
  virtual void lend(Range range, Access access, const Borrower& use) = 0;
  // The same for one state alone, the moment of a slot or kMasterWeights: others are not fetched.
  virtual void lend_one(Range range, int state, Access access, const BorrowerOfOne& use);
  // lend() will be called for `range`, after what was announced before for any group of the run. A hint: states that
  // have to be fetched are fetched ahead.
  virtual void will_need(Range) {}
  // All elements, if they are in memory for the whole run, else null. For code that needs an address.
  virtual const StateTensors* in_memory() const { return nullptr; }
  // Where a thread may read the states beside this one: as long as this is held, who borrows to write waits. Null where
  // they must be copied first.
  virtual WriteHold* hold() { return nullptr; }
  // Of the moment of a slot or kMasterWeights; where there is a hold(). The states outlive it.
  virtual std::unique_ptr<StateReader> reader(int /*state*/) { return nullptr; }
  // Copies of a device read what was lent last, until `event`: who borrows it to write waits for that.
  virtual void read_until(c10::Event event) { event.synchronize(); }
};

// States in the memory of a device. They do not own the memory. What a borrower's stream writes comes after what the
// streams of others have read, such as those of copies for a checkpoint.
class MemoryStates : public OptimizerStates {
 public:
  explicit MemoryStates(StateTensors tensors);
  void lend(Range range, Access access, const Borrower& use) override;
  const StateTensors* in_memory() const override { return &tensors_; }

 private:
  StateTensors tensors_;
  StreamUses uses_;
};

}  // namespace zeroshard

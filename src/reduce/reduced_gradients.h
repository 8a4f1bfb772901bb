#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>

#include "base/write_hold.h"
#include "device/exact_sum.h"
#include "layout/unit_layout.h"
#include "reduce/gradient_exit.h"
#include "store/array.h"

namespace zeroshard {

class Ledger;

// Options that all buckets of a run share.
struct ReduceOptions {
  at::Device device = at::kCPU;
  int rank = 0;              // index among the ranks that shard one copy of the states; set by the Reducer
  float pack_scale = 1;      // factor before the sum over ranks
  float sum_scale = 1;       // factor after the sum over ranks
  bool native = false;       // true: use the transport's own reduce-scatter, if it has one; false: the canonical order
  Ledger* ledger = nullptr;  // set by the Reducer
  GradientExit* exit = nullptr;             // null if no reduced gradients leave a device; set by the Reducer
  WriteHold::WhileWaiting while_read = {};  // called while new gradients wait for results of read() to be destroyed
};

// The reduced gradients of a group: those of the elements that this rank updates. They are on the device, on the host
// or in files. The group's bucket adds each sum over ranks to them. The first sum of a step overwrites them instead.
class ReducedGradients {
 public:
  // `values` has the gradients of this rank's part, or of all padded_numel elements if `are_whole`. `group` and
  // `options` must outlive this object.
  ReducedGradients(const FlatGroup& group, bool are_whole, const ReduceOptions& options, std::unique_ptr<Array> values);

  // Returns the gradients. If they are copied to the host, first waits until they have arrived there.
  Array& values() const;
  // Returns values() as a tensor. It is undefined if the gradients are in files.
  at::Tensor tensor() const;
  // Returns a view of the gradients of this rank's part. They must be in memory.
  at::Tensor part() const;
  // As long as the result exists, new gradients that are copied to the host wait before they overwrite the present
  // ones.
  WriteHold::Reading read() const { return hold_->read(); }
  // Returns whether there are gradients of the current step.
  bool are_current() const { return are_current_; }
  // Returns the sum of squares of this rank's part. Only on the CPU. It is zero before the first sum of the step.
  const ExactSum& squares() const { return squares_; }

  // Copies the gradients, because new ones will be packed in their memory. The next add() adds the new sum to this
  // copy, and copies the result back.
  void keep() { kept_ = part().clone(); }
  // Begins a sum: call it before add(). Returns the memory in which add() forms the sum. This is a buffer of the exit,
  // if there is one, or else the copy of keep(). If there is neither, returns an undefined tensor, and add() forms the
  // sum in the memory of the gradients.
  at::Tensor begin_sum();
  // Adds the sum of `pieces` to the gradients. Each piece has a value for every element of this rank's part. The first
  // sum of a step overwrites the gradients instead. `elsewhere` is the result of begin_sum(). Without `elsewhere`,
  // gradients in files are summed in several parts.
  void add(std::span<const void* const> pieces, DType dtype, const at::Tensor& elsewhere);
  // Replaces this rank's elements of parameter `index` with `values`, which has as many elements.
  void replace(size_t index, const at::Tensor& values);
  // Sets this rank's elements of parameter `index` to zero while a bucket may be adding to them. If ranks run on a
  // device or the gradients are in files, does nothing and returns false.
  bool zero_under_way(size_t index);
  // Forgets what keep() has copied.
  void forget_kept() { kept_ = at::Tensor(); }
  // Call it after the optimizer's step. The next sum then overwrites the gradients.
  void end_step() {
    are_current_ = false;
    squares_ = ExactSum();
  }

 private:
  // mine() returns the positions of this rank's part in values_. owned() returns the positions of this rank's elements
  // of a parameter, counted from the first element of this part.
  Range mine() const;
  Range owned(size_t index) const;
  void end_exit();
  ExactSum* squares_here() { return options_.device.is_cpu() ? &squares_ : nullptr; }

  const FlatGroup& group_;
  const ReduceOptions& options_;
  bool are_whole_;
  std::unique_ptr<Array> values_;
  std::unique_ptr<WriteHold> hold_;            // protects values_ from writes
  size_t number_ = 0;                          // number of this bucket at the exit
  mutable std::optional<c10::Event> arrived_;  // end of the last copy to the host
  at::Tensor kept_;                            // see keep()
  bool are_current_ = false;
  ExactSum squares_;
};

}  // namespace zeroshard

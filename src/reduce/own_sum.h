#pragma once
#include <ATen/core/Tensor.h>

#include "device/flat_buffer.h"
#include "device/math.h"
#include "device/streams.h"
#include "layout/unit_layout.h"

namespace zeroshard {

// The sum of the gradients of a group that this rank got under no_sync, or too late for the launch of their bucket. A
// later launch takes it. It has the gradient dtype, and memory from the first add() on.
class OwnSum {
 public:
  // `group` must outlive it.
  OwnSum(const FlatGroup& group, DType dtype, at::Device device)
      : group_(group), dtype_(dtype), device_(device), uses_(device) {}

  // Returns whether the sum has gradients that no launch has taken.
  bool is_used() const { return used_; }
  // Adds a gradient times `scale`. `ledger` counts the memory.
  void add(const math::Packed& grad, float scale, Ledger& ledger);
  // Adds the sum to `buffer`, which has padded_numel elements. Then forgets the sum.
  void move_to(const at::Tensor& buffer);
  // Forgets the gradients of parameter `index`.
  void drop(size_t index);
  void discard() { used_ = false; }

 private:
  at::Tensor values() const;

  const FlatGroup& group_;
  DType dtype_;
  at::Device device_;
  FlatBuffer memory_;
  StreamUses uses_;
  bool used_ = false;
};

}  // namespace zeroshard

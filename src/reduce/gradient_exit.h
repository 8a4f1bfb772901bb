#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

#include "device/exact_sum.h"
#include "device/flat_buffer.h"
#include "device/mover.h"
#include "plan/state_rules.h"
#include "store/array.h"

namespace zeroshard {

// Copies reduced gradients from a device to the host. A bucket is summed in a device buffer. A separate stream copies
// the buffer while the next bucket is summed in another one. Sums over micro-batches are also computed on the device:
// the earlier sum is copied back from the host first. So offloaded gradients have the same bits as gradients that stay
// on the device.
//
// The squares of each bucket stay on the device until the step asks for all of them.
class GradientExit {
 public:
  // `buffers` is gradient_exit() of the plan. `ledger` must outlive the exit.
  GradientExit(at::Device device, const RingClass& buffers, Ledger& ledger);

  // Returns the number of the next bucket.
  size_t add_bucket() { return num_buckets_++; }

  // Returns a device buffer for the gradients of `to`, which is on the host or in a file. The current stream may use
  // the buffer. With `has_values` it contains the values of `to`.
  at::Tensor begin(Array& to, bool has_values);
  // Copies the values that the current stream has written to that buffer to `to`, and keeps their squares for `bucket`.
  // If `to` is on the host, the copy has ended when the returned event has. If `to` is a file, the values are in the
  // file after settle(), where the host waits for the copy and the file. begin() calls settle(), too.
  std::optional<c10::Event> end(Array& to, size_t bucket);
  void settle();

  // Returns the sum of the squares of the buckets that are `chosen`, by number. The host waits for the current stream.
  ExactSum squares(const std::vector<bool>& chosen) const;

 private:
  // Values that settle() must write to a file.
  struct Pending {
    Array* file;
    Mover::Slot* buffer;
    at::Tensor values;
  };
  void end_sum(size_t bucket);

  FlatBuffer limbs_;  // exact sums of the squares of each bucket
  mutable StreamUses limbs_uses_;
  size_t num_buckets_ = 0;
  Mover::Slot* buffer_ = nullptr;  // set between begin() and end()
  at::Tensor filling_;             // filled part of buffer_
  std::optional<Pending> pending_;
  Mover mover_;  // the last member, so that it is destroyed before the memory
};

}  // namespace zeroshard

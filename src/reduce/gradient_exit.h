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

// Where reduced gradients leave a device for the host: they are summed in a buffer on the device, which is copied by a
// stream of its own while the next bucket is summed in another. Sums over micro-batches are made on the device, too:
// what the host has comes back first. So the bits are those of gradients that stay.
//
// The squares of each bucket stay on the device until the step asks for all of them.
class GradientExit {
 public:
  // `buffers`: gradient_exit() of the plan, for that many buckets. `ledger` outlives it.
  GradientExit(at::Device device, const RingClass& buffers, Ledger& ledger);

  // The number of the next bucket.
  size_t add_bucket() { return num_buckets_++; }

  // A buffer of the device for the gradients of `to`, which lies on the host or in a file. The buffer is for the
  // current stream. With `has_values` it has those of `to`.
  at::Tensor begin(Array& to, bool has_values);
  // What the current stream has written to that buffer goes to `to`, and its squares are those of `bucket`. On the host
  // the copy is complete when the event is. A file has what was written to the buffer after settle(), which begin()
  // calls, too: the host waits there, for the copy and for the file.
  std::optional<c10::Event> end(Array& to, size_t bucket);
  void settle();

  // The squares of the buckets that are `chosen`, by number. The host waits for the current stream.
  ExactSum squares(const std::vector<bool>& chosen) const;

 private:
  // What is to be written to a file.
  struct Pending {
    Array* file;
    Mover::Slot* buffer;
    at::Tensor values;
  };
  void end_sum(size_t bucket);

  FlatBuffer limbs_;  // of the squares of each bucket
  mutable StreamUses limbs_uses_;
  size_t num_buckets_ = 0;
  Mover::Slot* buffer_ = nullptr;  // from begin() to end(),
  at::Tensor filling_;             // and what of it is filled
  std::optional<Pending> pending_;
  Mover mover_;  // the last member, so that it ends before the memory goes
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

#include "device/exact_sum.h"
#include "device/flat_buffer.h"
#include "device/mover.h"
#include "plan/buffer_sizes.h"
#include "store/array.h"

namespace zeroshard {

// Copies reduced gradients from a device to the host or to files. A bucket is summed in a device buffer. While a
// separate stream copies this buffer, the next bucket is summed in another buffer. The sum over micro-batches is also
// computed on the device. For this, the sum of the earlier micro-batches is first copied back to the device. So
// offloaded gradients have the same bits as gradients that stay on the device.
//
// Each bucket's sum of squares stays on the device until squares() asks for the sums of all buckets.
class GradientExit {
 public:
  // `buffers` is the result of gradient_exit() in plan/buffer_sizes.h. `ledger` must outlive the exit.
  GradientExit(at::Device device, const RingClass& buffers, Ledger& ledger);

  // Registers the next bucket and returns its number.
  size_t add_bucket() { return num_buckets_++; }

  // Returns a device buffer for new values of `to`, an array on the host or in a file. Work of the current stream may
  // use the buffer. If `has_values` is true, the buffer contains the present values of `to`.
  at::Tensor begin(Array& to, bool has_values);
  // Call it when the work that fills the buffer of the last begin() is queued on the current stream. Keeps the sum of
  // squares of the buffer's values for `bucket`. If `to` is on the host, starts to copy the values to `to`, and returns
  // an event that completes when the copy has ended. If `to` is in a file, starts no copy and returns nothing. The next
  // settle() then copies the values and writes them to the file, and the host waits for both. begin() calls settle(),
  // too.
  std::optional<c10::Event> end(Array& to, size_t bucket);
  void settle();

  // Returns the sum of squares of the buckets i with chosen[i]. The host waits for the current stream.
  ExactSum squares(const std::vector<bool>& chosen) const;

 private:
  // Values that settle() must write to a file.
  struct Pending {
    Array* file;
    Mover::Slot* buffer;
    at::Tensor values;
  };
  void end_sum(size_t bucket);

  FlatBuffer limbs_;  // for each bucket, the limbs of its exact sum of squares
  mutable StreamUses limbs_uses_;
  size_t num_buckets_ = 0;
  Mover::Slot* buffer_ = nullptr;  // set between begin() and end()
  at::Tensor filling_;             // filled part of buffer_
  std::optional<Pending> pending_;
  Mover mover_;  // the last member, so that it is destroyed before the memory that it copies
};

}  // namespace zeroshard

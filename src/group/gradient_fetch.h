#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <functional>

#include "device/mover.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// Copies reduced gradients from a device to the host, which updates parameters with them. The copies run piece by piece
// on a stream of their own, through a few buffers of host memory. While the host works on a piece, the next pieces are
// copied.
class GradientFetch {
 public:
  // With one slot, nothing is copied while the host works on a piece.
  GradientFetch(at::Device device, const Mover::Slots& slots, Ledger& ledger) : mover_(device, slots, ledger) {}

  // Announces that lend() will be called for `range` of `grads`, after it was called for the ranges that were announced
  // earlier. The announced ranges are copied ahead in this order, as slots become free. All work that computes the
  // gradients must be queued on the current stream already.
  void will_need(const at::Tensor& grads, Range range);
  // Calls `use` for consecutive parts that make up `range` of `grads`, which is 1-D. The host waits for the copy of
  // each part. The tensor passed to `use` is on the host, and valid during the call only. If the next announced piece
  // does not contain the next element of the range, forgets all announcements and fetches the rest of the range now.
  using Use = std::function<void(Range part, const at::Tensor& grads)>;
  void lend(const at::Tensor& grads, Range range, const Use& use);
  // Forgets all announcements, and waits for the copies that have begun. Afterwards the gradients on the device may be
  // overwritten.
  void end();

 private:
  struct Wanted {
    at::Tensor grads;
    Range range;
  };
  struct Piece {
    const void* grads;  // address of the gradients, which identifies them
    Range range;
    at::Tensor values;  // on the host
    c10::Event arrived;
  };

  void begin_pieces();
  const Piece& arrived(const at::Tensor& grads, Range range);

  std::deque<Wanted> wanted_;    // announced ranges whose copies have not begun
  std::deque<Piece> under_way_;  // pieces that are copied or being copied; each has a slot
  Mover mover_;
};

}  // namespace zeroshard

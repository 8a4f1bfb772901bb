#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <functional>

#include "device/mover.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// Brings reduced gradients that stay on a device to the host, which updates with them: piece after piece, by a stream
// of its own, through a few buffers of host memory. While the host works on a piece the next ones come.
class GradientFetch {
 public:
  // With two slots at least, or nothing comes ahead.
  GradientFetch(at::Device device, const Mover::Slots& slots, Ledger& ledger) : mover_(device, slots, ledger) {}

  // lend() will be called for `range` of `grads`, after what was announced before. A hint: it is fetched ahead. What
  // the current stream was given so far makes the gradients.
  void will_need(const at::Tensor& grads, Range range);
  // Calls `use` for consecutive parts that make up `range` of `grads`, which are 1-D. The tensor is on the host, and
  // valid during the call only.
  using Use = std::function<void(Range part, const at::Tensor& grads)>;
  void lend(const at::Tensor& grads, Range range, const Use& use);
  // Forgets what was announced, and waits for copies of it: from then on the gradients may be written.
  void end();

 private:
  struct Wanted {
    at::Tensor grads;
    Range range;
  };
  struct Piece {
    const void* grads;  // which
    Range range;
    at::Tensor values;  // on the host
    c10::Event arrived;
  };

  void begin_pieces();
  const Piece& arrived(const at::Tensor& grads, Range range);

  std::deque<Wanted> wanted_;    // what is still to be copied
  std::deque<Piece> under_way_;  // copied, or being copied; each has a slot
  Mover mover_;
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <functional>
#include <vector>

#include "device/flat_buffer.h"
#include "device/streams.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// Brings reduced gradients that stay on a device to the host, which updates with them: piece after piece, by a stream
// of its own, through a few buffers of host memory. While the host works on a piece the next ones come.
class GradientFetch {
 public:
  struct Options {
    at::Device device = at::kCPU;
    int64_t slot_bytes = 0;  // of a piece
    int slots = 0;           // two at least, or nothing comes ahead
    int64_t piece_numel = 0;
    bool pin = true;
  };
  GradientFetch(const Options& options, Ledger& ledger);
  GradientFetch(const GradientFetch&) = delete;
  GradientFetch& operator=(const GradientFetch&) = delete;
  // Waits for what is under way: then the gradients may go.
  ~GradientFetch();

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

  Options options_;
  std::vector<FlatBuffer> slots_;
  size_t turn_ = 0;              // of the slot that is filled next
  std::deque<Wanted> wanted_;    // what is still to be copied
  std::deque<Piece> under_way_;  // copied, or being copied; each has a slot
  SideStream stream_;
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/comm.h"
#include "device/flat_buffer.h"
#include "plan/buffer_sizes.h"

namespace zeroshard {

// Completes shards of 16-bit parameters after each rank of `parts` has updated one part of each shard. The ranks send
// each other their parts as 8-bit codes.
//
// Note [Parameters in 8 bits]
// A block of kScaledNumel elements travels as one fp32 scale and one whole number from -127 to 127 per element. The
// scale is the block's largest magnitude / 127. The number is the element / the scale, rounded to nearest. A decoded
// element is the number times the scale, rounded to 16 bits. Before this last rounding it differs from the original by
// at most 1 / 254 of the block's largest magnitude. (The error is larger in a block whose largest magnitude is below
// 1e-35.) If an element is not finite, its whole block is decoded as NaN. All ranks, even the one that has updated the
// part, take the decoded elements, so that parameters stay equal on all ranks. The master weights stay exact. The codes
// of optimizer states (Note [The dynamic map]) are not used for parameters. They cover many magnitudes, so near a
// block's largest element their values are almost twice as far apart: 0.9 / 64 of this element instead of 1 / 127.
class CodedRefresh {
 public:
  // Collective over `parts`, which must outlive the object. `buffers` is the result of refresh_codes().
  CodedRefresh(Comm& parts, const RingClass& buffers, at::Device device, Ledger& ledger);

  // Encodes this rank's part of each shard, and starts to gather all parts. `shards` are this rank's shards of a unit's
  // trained 16-bit groups. Collective. At most `buffers.slots` refreshes may be under way at a time, each from its
  // begin() to its finish().
  void begin(std::vector<at::Tensor> shards, std::string_view tag);
  // Waits for the parts of the oldest begin() that has no finish() yet. Writes the decoded elements of all parts to the
  // shards of that begin().
  void finish();

 private:
  struct Slot {
    FlatBuffer memory;
    std::vector<at::Tensor> shards = {};
    std::vector<std::unique_ptr<Work>> works = {};
  };
  // Returns the slot's memory for the codes and scales of all parts of shard number `index`.
  Span codes_of(const Slot& slot, size_t index) const;

  Comm& parts_;
  std::vector<Slot> slots_;
  size_t begun_ = 0, finished_ = 0;
};

}  // namespace zeroshard

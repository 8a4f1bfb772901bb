#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/comm.h"
#include "device/flat_buffer.h"
#include "plan/state_rules.h"

namespace zeroshard {

// Completes shards of 16-bit parameters after each rank of `parts` has updated one part of each shard. The ranks send
// each other their parts as 8-bit numbers.
//
// Note [Parameters in 8 bits]
// A block of kScaledNumel elements travels as one fp32 scale and one whole number from -127 to 127 per element. The
// scale is the largest magnitude in the block / 127, and a decoded element is its number times the scale. So before it
// is rounded to 16 bits, an element is off by at most 1 / 254 of the block's largest magnitude. All ranks, even the one
// that has updated the part, take the decoded elements, so that parameters stay equal on all ranks. The master weights
// stay exact. Equal steps suit weights better than the map of Note [The dynamic map]. That map is for values of many
// magnitudes, and its steps near the largest element are twice as long.
class CodedRefresh {
 public:
  // Collective over `parts`, which must outlive the object. `buffers` is the result of refresh_codes().
  CodedRefresh(Comm& parts, const RingClass& buffers, at::Device device, Ledger& ledger);

  // Encodes this rank's part of each shard, and starts to gather all parts. `shards` are this rank's shards of a unit's
  // trained 16-bit groups.
  void begin(std::vector<at::Tensor> shards, std::string_view tag);
  // Waits for the parts of the oldest begin() that has no finish() yet, and writes the decoded elements to its shards.
  void finish();

 private:
  struct Slot {
    FlatBuffer memory;
    std::vector<at::Tensor> shards = {};
    std::vector<std::unique_ptr<Work>> works = {};
  };
  // Returns the memory of the codes of shard number `index`.
  Span codes_of(const Slot& slot, size_t index) const;

  Comm& parts_;
  std::vector<Slot> slots_;
  size_t begun_ = 0, finished_ = 0;
};

}  // namespace zeroshard

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

// Gathers shards of 16-bit parameters of which each rank of `parts` has updated one part. The parts travel as 8-bit
// numbers.
//
// Note [Parameters in 8 bits]
// A block of kScaledNumel elements travels as one fp32 scale, the largest magnitude / 127, and multiples of it from
// -127 to 127. So an element is off by at most 1 / 254 of the largest one, before it is rounded to 16 bits. All ranks,
// the owner of the part included, take the decoded numbers, so that parameters stay equal on all ranks. The owner's
// master weights stay exact. Multiples suit weights better than the map of Note [The dynamic map], whose steps near the
// largest element are twice as long: it is for values of many magnitudes.
class CodedRefresh {
 public:
  // Collective over `parts`, which must outlive the object. `buffers` is refresh_codes().
  CodedRefresh(Comm& parts, const RingClass& buffers, at::Device device, Ledger& ledger);

  // Encodes this rank's part of each shard, and starts to gather all parts. `shards` are those of a unit's groups.
  void begin(std::vector<at::Tensor> shards, std::string_view tag);
  // Writes the shards of the oldest begin() that has not finished.
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

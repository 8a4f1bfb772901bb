#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "device/flat_buffer.h"
#include "group/optimizer_states.h"
#include "memory/ledger.h"
#include "placement/placement.h"

namespace zeroshard {

// States in the host's memory, beside the device that has the parameters. They own it. Who borrows them reads and
// writes on the host; copies of a device that it has begun may read for longer (read_until()).
class HostStates final : public OptimizerStates {
 public:
  // What `place` has of the group on the host, in memory of exactly that size. With `pin`, `device` copies to and from
  // it by itself. `ledger` outlives the states.
  HostStates(const ShardLayout& layout, const GroupPlacement& place, at::Device device, bool pin, Ledger& ledger);
  void lend(Range range, Access access, const Borrower& use) override;
  const StateTensors* in_memory() const override { return &tensors_; }
  void read_until(c10::Event event) override { reading_ = std::move(event); }

 private:
  std::vector<FlatBuffer> memory_;
  StateTensors tensors_;
  std::optional<c10::Event> reading_;  // of the last copies from here
};

}  // namespace zeroshard

#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/flat_buffer.h"
#include "device/mover.h"
#include "group/sharded_group.h"

namespace zeroshard {

// All groups of a run with their memory, except gradients. The parameters that this rank keeps lie one after another in
// an allocation that peers can read; those on the host in another. Master weights are in one, the moments of each slot
// in others.
// Where groups are added unit by unit, each unit has such allocations of its own.
class Groups {
 public:
  struct Options {
    at::Device device = at::kCPU;
    // [unit][parameter]: its param group, or -1. Empty: all parameters belong to param group 0.
    std::vector<std::vector<int>> param_groups;
    // Groups get memory by add_unit(): while an engine is built, the user's tensors are freed meanwhile. Otherwise the
    // constructor adds all of them.
    bool unit_by_unit = false;
    // The swap files of these units' states and parameters, if some lie in files. They outlive the groups.
    SwapSpace* states_in_files = nullptr;
    SwapSpace* parameters_in_files = nullptr;
    // Called while an update waits for files that a save still reads.
    WriteHold::WhileWaiting while_a_save_reads = {};
    // Set where some states lie on the host, and the device is another. 16-bit parameters pass through the slots.
    std::optional<Mover::Slots> to_host = std::nullopt;
    // Set where the device updates parameters that have left it.
    std::optional<Mover::Slots> to_device = std::nullopt;
    bool pin_states = true, pin_parameters = true;  // those on the host
  };

  // Collective: see Comm::allocate. `units` and `placements`, one for each unit, and `comm` and `ledger` outlive the
  // groups.
  Groups(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options, Comm& comm,
         Ledger& ledger);
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  // Waits for copies from the host's memory, which goes.
  ~Groups();

  // The next unit's groups. Collective.
  void add_unit() { add(1); }

  // Of the units that were added.
  std::span<ShardedGroup> all() { return groups_; }
  std::span<ShardedGroup> of_unit(size_t unit);
  // In the order of their numbers.
  std::span<ShardedGroup* const> trained() const { return trained_; }

  // Frees the optimizer's states: from then on no group is trained.
  void free_states();
  // The host waits for what brings parameters to the device and from it: from then on code outside may write to states,
  // and to parameters on the host.
  void await_copies() const;

 private:
  struct StateMemory;

  std::unique_ptr<Array> states_of(const ShardLayout& layout, const GroupPlacement& place, StateMemory& memory,
                                   Array& parameters);
  // Of moments in 8-bit codes, by slot, in the memory of the CPU; else none.
  std::vector<at::Tensor> scales_of(const ShardLayout& layout, const GroupPlacement& place);
  // The next `count` units, in allocations that they share.
  void add(size_t count);
  // Of the group that is made next.
  ShardedGroup::Options options_of(size_t unit, size_t group);

  std::span<const UnitLayout> units_;
  std::span<const UnitPlacement> placements_;
  Options options_;
  Comm& comm_;
  Ledger& ledger_;
  std::vector<FlatBuffer> states_memory_, parameters_memory_;
  std::vector<ShardedGroup> groups_;  // unit after unit
  std::vector<size_t> first_of_{0};   // by unit, and the end: where its groups begin
  std::vector<ShardedGroup*> trained_;
  // The last: they end before the memory of groups goes.
  std::unique_ptr<Mover> to_host_, to_device_;
};

}  // namespace zeroshard

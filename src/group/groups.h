#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/flat_buffer.h"
#include "device/mover.h"
#include "group/sharded_group.h"

namespace zeroshard {

// Owns all groups of a run and their memory, except gradients. The parameters that this rank keeps are contiguous in
// one allocation that peers can read; parameters on the host are in another one. Master weights have one allocation,
// and the moments of each slot another. If groups are added unit by unit, each unit has such allocations of its own.
class Groups {
 public:
  struct Options {
    at::Device device = at::kCPU;
    std::optional<int> rank = std::nullopt;  // among those that shard one copy of the states; unset: rank of `comm`
    // [unit][parameter]: index of its param group, or -1. Empty: all parameters belong to param group 0.
    std::vector<std::vector<int>> param_groups;
    // true: add_unit() allocates groups one unit at a time, so that the user's tensors can be freed while an engine is
    // built. false: the constructor allocates all groups.
    bool unit_by_unit = false;
    // The swap files of the units' states and parameters, if some are in files. They must outlive the groups.
    SwapSpace* states_in_files = nullptr;
    SwapSpace* parameters_in_files = nullptr;
    // Called while an update waits for a save that still reads files.
    WriteHold::WhileWaiting while_a_save_reads = {};
    // Set if some states are on the host and ranks run on another device. 16-bit parameters pass through these slots.
    std::optional<Mover::Slots> to_host = std::nullopt;
    // Set if the device updates parameters that are offloaded.
    std::optional<Mover::Slots> to_device = std::nullopt;
    bool pin_states = true, pin_parameters = true;  // pin states and parameters in host memory
  };

  // Collective: see Comm::allocate. There is one placement per unit. `units`, `placements`, `comm` and `ledger` must
  // outlive the groups.
  Groups(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options, Comm& comm,
         Ledger& ledger);
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  // Waits for copies from the host memory before the memory is freed.
  ~Groups();

  // Adds the groups of the next unit. Collective.
  void add_unit() { add(1); }

  // Returns the groups of all units added so far.
  std::span<ShardedGroup> all() { return groups_; }
  std::span<ShardedGroup> of_unit(size_t unit);
  // Returns the trained groups in the order of their numbers.
  std::span<ShardedGroup* const> trained() const { return trained_; }

  // Frees the optimizer's states. After that, no group is trained.
  void free_states();
  // Waits on the host for all copies of parameters to and from the device. After that, other code may write to states
  // and to parameters on the host.
  void await_copies() const;

 private:
  struct StateMemory;

  std::unique_ptr<Array> states_of(const ShardLayout& layout, const GroupPlacement& place, StateMemory& memory,
                                   Array& parameters);
  // Returns the scales of moments in 8-bit codes, by slot, in the memory that place names; none for other moments.
  std::vector<at::Tensor> scales_of(const ShardLayout& layout, const GroupPlacement& place);
  // Adds the next `count` units, in allocations that they share.
  void add(size_t count);
  int rank() const { return options_.rank.value_or(comm_.rank()); }
  // Returns the options of the group that is created next.
  ShardedGroup::Options options_of(size_t unit, size_t group);

  std::span<const UnitLayout> units_;
  std::span<const UnitPlacement> placements_;
  Options options_;
  Comm& comm_;
  Ledger& ledger_;
  std::vector<FlatBuffer> states_memory_, parameters_memory_;
  std::vector<ShardedGroup> groups_;  // unit after unit
  std::vector<size_t> first_of_{0};   // by unit, and one for the end: index of its first group
  std::vector<ShardedGroup*> trained_;
  // The last members, because they must be destroyed before the memory of groups.
  std::unique_ptr<Mover> to_host_, to_device_;
};

}  // namespace zeroshard

#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/flat_buffer.h"
#include "device/mover.h"
#include "group/sharded_group.h"

namespace zeroshard {

// Owns all groups of a run and their memory, except gradients. The parameters that this rank keeps on its device are
// contiguous in one allocation of Comm::allocate(). Offloaded parameters in host memory are in another allocation.
// Master weights on the device have one allocation, and so has each moment (Adam has two). In host memory, each state
// of each group has an allocation of its own. So have the scales of a group's 8-bit moments. If groups are added unit
// by unit, no allocation is shared by two units.
class Groups {
 public:
  struct Options {
    at::Device device = at::kCPU;
    // The index among the ranks that shard one copy of the states; unset: the rank in `comm`.
    std::optional<int> rank = std::nullopt;
    // [unit][parameter]: the index of the parameter's param group; -1: the parameter is never updated. Empty: all
    // parameters belong to param group 0.
    std::vector<std::vector<int>> param_groups;
    // true: add_unit() allocates groups one unit at a time, so that the user's tensors can be freed while an engine is
    // built. false: the constructor allocates all groups.
    bool unit_by_unit = false;
    // The swap files of the units' states and of their parameters, or null if none are in files. The swap files must
    // outlive the groups.
    SwapSpace* states_in_files = nullptr;
    SwapSpace* parameters_in_files = nullptr;
    // Called while an update waits for a save that still reads files.
    WriteHold::WhileWaiting while_a_save_reads = {};
    // Set if ranks run on a GPU or another accelerator, and the host updates parameters that are on this device. The
    // slots are the host buffers through which 16-bit parameters pass to the host and back.
    std::optional<Mover::Slots> to_host = std::nullopt;
    // Set if the device updates parameters that are offloaded. The slots are the device buffers through which these
    // parameters pass.
    std::optional<Mover::Slots> to_device = std::nullopt;
    bool pin_states = true, pin_parameters = true;  // whether those on the host are page-locked
  };

  // Collective, because it allocates parameters by Comm::allocate(). With `unit_by_unit` it allocates none, and only
  // add_unit() is collective. There is one placement per unit. `units`, `placements`, `comm` and `ledger` must outlive
  // the groups.
  Groups(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options, Comm& comm,
         Ledger& ledger);
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;
  // Waits for pending copies of parameters before their memory is freed.
  ~Groups();

  // Adds the groups of the next unit. Collective. Allowed only with Options::unit_by_unit.
  void add_unit() { add(1); }

  // Returns the groups of all units added so far.
  std::span<ShardedGroup> all() { return groups_; }
  std::span<ShardedGroup> of_unit(size_t unit);
  // Returns the trained groups in the order of ShardedGroup::number().
  std::span<ShardedGroup* const> trained() const { return trained_; }

  // Waits for pending copies, and frees the optimizer states of all groups. Afterwards trained() is empty, and no group
  // may be trained.
  void free_states();
  // Makes the host wait for all copies of parameters to and from the device. Afterwards other code may write to states
  // and parameters that are on the host.
  void await_copies() const;

 private:
  struct StateMemory;

  std::unique_ptr<Array> states_of(const ShardLayout& layout, const GroupPlacement& place, StateMemory& memory,
                                   Array& parameters);
  // Allocates the scales of a group's moments, one tensor for each moment, on the tier place.moments.scales. Returns
  // none if the moments are not in 8-bit codes.
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
  std::vector<size_t> first_of_{0};   // by unit: index of its first group; one more entry for the end
  std::vector<ShardedGroup*> trained_;
  // The movers are the last members, because they must be destroyed before the memory of the groups.
  std::unique_ptr<Mover> to_host_, to_device_;
};

}  // namespace zeroshard

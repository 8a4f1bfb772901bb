#pragma once
#include <memory>
#include <span>
#include <vector>

#include "device/flat_buffer.h"
#include "group/sharded_group.h"

namespace zeroshard {

// All groups of a run with their memory, except gradients. The parameters that this rank keeps lie one after another in
// an allocation that peers can read. Master weights are in a second allocation, the moments of each slot in others.
class Groups {
 public:
  struct Options {
    at::Device device = at::kCPU;
    // [unit][parameter]: its param group, or -1. Empty: all parameters belong to param group 0.
    std::vector<std::vector<int>> param_groups;
  };

  // Collective: see Comm::allocate. `units` and `placements`, one for each unit, outlive the groups.
  Groups(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, const Options& options,
         Comm& comm, Ledger& ledger);
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  std::span<ShardedGroup> all() { return groups_; }
  std::span<ShardedGroup> of_unit(size_t unit);
  // In the order of their numbers.
  std::span<ShardedGroup* const> trained() const { return trained_; }

  // Frees the optimizer's states: from then on no group is trained.
  void free_states();

 private:
  std::vector<FlatBuffer> states_memory_;
  FlatBuffer parameters_memory_;
  std::vector<ShardedGroup> groups_;  // unit after unit
  std::vector<size_t> first_of_;      // by unit, and the end: where its groups begin
  std::vector<ShardedGroup*> trained_;
};

}  // namespace zeroshard

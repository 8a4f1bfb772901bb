#pragma once
#include <cstddef>
#include <ranges>
#include <span>
#include <string_view>
#include <vector>

#include "comm/comm.h"

namespace zeroshard {

// The order in which all ranks launch the buckets of a run. It begins as the reverse of the order of the units. In the
// first backward pass, it is the reverse of the order in which rank 0's forward first needed the units. In later
// passes, it is the order in which rank 0 completed the buckets in the first pass.
class LaunchOrder {
 public:
  // `first_of[unit]` is the index of the unit's first bucket. One more element has the number of buckets. `all` has the
  // ranks of all replicas; null: there is one replica.
  LaunchOrder(std::vector<size_t> first_of, Comm* all);

  size_t num_units() const { return first_of_.size() - 1; }
  size_t num_buckets() const { return first_of_.back(); }
  // Returns the indices of a unit's buckets.
  auto of_unit(size_t unit) const { return std::views::iota(first_of_.at(unit), first_of_.at(unit + 1)); }
  // Returns the buckets in the order of launches.
  const std::vector<size_t>& buckets() const { return buckets_; }
  // Returns the order of the units in forward, which is derived from buckets(). Units without a bucket come last.
  const std::vector<size_t>& units_of_forward() const { return units_of_forward_; }

  // Returns whether learn_forward() may be called. It may if neither learn_forward() nor learn_backward() has
  // succeeded, and if no bucket is complete.
  bool can_learn_forward() const { return basis_ == Basis::kUnits && completed_.empty(); }
  // Takes rank 0's order of forward. `needed` has the units in the order in which this rank's forward used them.
  // Collective over `comm`, which has the ranks of one replica, and over the ranks of all replicas.
  void learn_forward(std::span<const size_t> needed, Comm& comm);
  // Says that a bucket is ready to be launched, or that one that was launched without gradients gets its first. This
  // completes the bucket. Only the order of the last calls counts.
  void note_ready(size_t bucket);
  // Takes the order in which rank 0 completed its buckets, unless an earlier call did so. All buckets must be complete.
  // Collective, as learn_forward().
  void learn_backward(Comm& comm);
  // Forgets which buckets are complete.
  void discard() { completed_.clear(); }

 private:
  enum class Basis { kUnits, kForward, kBackward };  // what the order comes from
  void set(std::vector<size_t> buckets);
  void take_from_rank_0(const std::vector<size_t>& own, Comm& comm, std::string_view tag);

  std::vector<size_t> first_of_;
  Comm* all_;
  std::vector<size_t> buckets_;
  std::vector<size_t> units_of_forward_;
  std::vector<size_t> completed_;  // buckets of the first backward pass, in the order of completion
  Basis basis_ = Basis::kUnits;
};

}  // namespace zeroshard

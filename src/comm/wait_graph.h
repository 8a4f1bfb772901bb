#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/direct_memory.h"
#include "comm/rank_numbers.h"

namespace zeroshard {

// Detects cycles of ranks that wait for one another over several communicators. If ranks call collectives in different
// orders, each of them can end up waiting in a different communicator, forever, and no communicator alone can see that.
// All communicators of a graph must have the same ranks with the same numbers. Each rank uses all these communicators
// from one thread, so a rank that waits in one communicator does nothing in the others. Not thread-safe.
class WaitGraph {
 public:
  // Error messages name ranks by `numbers`.
  explicit WaitGraph(RankNumbers numbers = {}) : numbers_(numbers) {}

  void add(const std::shared_ptr<DirectMemory>& memory) { communicators_.push_back(memory); }

  // Looks for ranks that wait for one another in a cycle. Returns what each rank of the cycle called, if `rank` belongs
  // to the cycle or waits for one of its ranks, directly or through other ranks. Never reports a cycle while one of its
  // ranks can continue.
  std::optional<std::string> find_cycle(int rank) const;
  // Aborts all communicators on behalf of `rank`, with `reason`.
  void abort(int rank, std::string_view reason) const noexcept;

 private:
  struct Wait {
    std::shared_ptr<DirectMemory> communicator;
    int rank;
    Awaited awaited;
  };
  std::optional<Wait> wait_of(int rank) const;

  RankNumbers numbers_;
  std::vector<std::weak_ptr<DirectMemory>> communicators_;
};

}  // namespace zeroshard

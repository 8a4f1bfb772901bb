#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/direct_memory.h"

namespace zeroshard {

// Who waits for whom over several communicators of the same ranks. Ranks that each wait in another communicator,
// because they called collectives in another order, wait for ever, and no communicator sees it alone. Each rank has one
// thread for all communicators of a graph: a rank that waits in one does nothing in the others. Not thread-safe.
class WaitGraph {
 public:
  void add(const std::shared_ptr<DirectMemory>& memory) { communicators_.push_back(memory); }

  // What each of them called, if `rank` waits for a rank that waits for a rank ... that waits for one of them. Never
  // found while anyone of them can go on.
  std::optional<std::string> find_cycle(int rank) const;
  // In all communicators: `rank` gives `reason`.
  void abort(int rank, std::string_view reason) const noexcept;

 private:
  struct Wait {
    std::shared_ptr<DirectMemory> communicator;
    int rank;
    Awaited awaited;
  };
  std::optional<Wait> wait_of(int rank) const;

  std::vector<std::weak_ptr<DirectMemory>> communicators_;
};

}  // namespace zeroshard

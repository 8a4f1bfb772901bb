#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/direct_memory.h"

namespace zeroshard {

// Who waits for whom over several communicators of the same ranks. If ranks call collectives in different orders, each
// may wait in another communicator; they wait for ever, and no single communicator sees it. Each rank has one thread
// for all communicators of a graph: while it waits in one, it does nothing in the others. Not thread-safe.
class WaitGraph {
 public:
  void add(const std::shared_ptr<DirectMemory>& memory) { communicators_.push_back(memory); }

  // If `rank` waits, directly or through others, for a cycle of ranks that wait for one another: what each rank of the
  // cycle called. Never found while any of them can continue.
  std::optional<std::string> find_cycle(int rank) const;
  // `rank` leaves all communicators with `reason`.
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

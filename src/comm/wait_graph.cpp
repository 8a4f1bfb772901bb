#include "comm/wait_graph.h"

#include <algorithm>

#include "base/format.h"

namespace zeroshard {

std::optional<WaitGraph::Wait> WaitGraph::wait_of(int rank) const {
  for (const std::weak_ptr<DirectMemory>& each : communicators_) {
    std::shared_ptr<DirectMemory> communicator = each.lock();
    if (!communicator) continue;
    ControlBlock& control = communicator->control();
    const std::optional<Awaited> awaited = control.rank(rank).awaited.load();
    if (!awaited || awaited->peer >= control.world_size()) continue;
    if (!control.rank(awaited->peer).has_reached(*awaited)) return Wait{std::move(communicator), rank, *awaited};
  }
  return std::nullopt;
}

std::optional<std::string> WaitGraph::find_cycle(int rank) const {
  std::vector<Wait> chain;
  const auto place = [&](int wanted) {
    return std::find_if(chain.begin(), chain.end(), [&](const Wait& wait) { return wait.rank == wanted; });
  };
  while (place(rank) == chain.end()) {
    const std::optional<Wait> wait = wait_of(rank);
    if (!wait) return std::nullopt;
    chain.push_back(*wait);
    rank = wait->awaited.peer;
  }
  chain.erase(chain.begin(), place(rank));  // drops ranks that wait for a rank of the cycle without being part of it
  // The loop looks at each wait again. A wait is over when the awaited peer has made the awaited progress. A rank
  // leaves a wait only when the wait is over, and never returns to the same wait. This thread now sees everything that
  // the ranks did before they began the waits in `chain`. So if all ranks are still in these waits, and no wait is
  // over, each rank of the cycle waits for the next one, and none can ever continue.
  std::string text = "ranks disagree: ";
  for (const Wait& wait : chain) {
    ControlBlock& block = wait.communicator->control();
    RankControl& control = block.rank(wait.rank);
    if (control.awaited.load() != wait.awaited || block.rank(wait.awaited.peer).has_reached(wait.awaited))
      return std::nullopt;
    const bool posted = wait.awaited.progress == Awaited::Progress::kPosted;
    text += concat(&wait == &chain.front() ? "" : "; ", "rank ", numbers_.of(wait.rank),
                   posted ? " called " : " waits in ", control.text_of(wait.awaited.seq),
                   posted ? " and waits for rank " : " for the end of rank ", numbers_.of(wait.awaited.peer));
  }
  return text;
}

void WaitGraph::abort(int rank, std::string_view reason) const noexcept {
  for (const std::weak_ptr<DirectMemory>& each : communicators_)
    if (const std::shared_ptr<DirectMemory> communicator = each.lock())
      communicator->control().abort(numbers_.of(rank), reason);
}

}  // namespace zeroshard

#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_numbers.h"
#include "comm/wait_listener.h"

namespace zeroshard {

// Identifies a process of this host. The start time distinguishes it from a later process with the same pid.
struct ProcessId {
  int32_t pid = 0;          // 0: no process, or a process on another host
  uint64_t start_time = 0;  // clock ticks since boot
  bool operator==(const ProcessId&) const = default;
};

enum class ProcessState : uint8_t { kRunning, kStopped, kDead };

ProcessId this_process();
// Returns a name of this host, which consists of its boot id and this process's pid namespace. Two processes have the
// same name only if a pid means the same process for both. Returns "" if the name is unknown.
std::string this_host();
ProcessState state_of(const ProcessId& process);

// Distinguishes a peer that has died or was stopped from a peer that is merely slow. A transport asks its PeerWatch
// while it waits for a peer.
class PeerWatch {
 public:
  // `processes[r]` is the process of rank r. A rank without a pid, or with the caller's own pid, is not watched. If
  // `listener` is not null, check_all() first asks it for a failure on another host. Error messages name rank r by the
  // number `numbers.of(r)`.
  PeerWatch(std::vector<ProcessId> processes, int64_t stall_timeout_ms,
            std::shared_ptr<WaitListener> listener = nullptr, RankNumbers numbers = {});

  // Returns what is wrong with `rank`, such as "rank 1 (pid 123) died". Returns nothing if the rank runs, is not
  // watched, or has been stopped for less than the stall timeout. A call is cheap, because check() looks at a process
  // at most every 100 ms, and returns nothing in between.
  std::optional<std::string> check(int rank);

  // If the listener knows of a failure on another host, returns this failure. If not, calls check() for each rank.
  // Returns "" if check() reports no rank. If it reports a rank, returns a text about every watched rank that is dead
  // or stopped, even if it has been stopped for less than the stall timeout, because one rank's failure often ends or
  // stops others.
  std::string check_all();

  // Returns "rank 1 (pid 123)", or "rank 1" if the process of the rank is unknown.
  std::string name(int rank) const;
  int world_size() const { return static_cast<int>(peers_.size()); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    ProcessId process;
    Clock::time_point last_look{};
    int64_t stopped_ms = 0;
  };

  bool watches(const Peer& peer) const;
  std::string text(int rank, ProcessState state) const;

  std::vector<Peer> peers_;
  int64_t stall_timeout_ms_;
  int32_t own_pid_;
  std::shared_ptr<WaitListener> listener_;
  RankNumbers numbers_;
};

}  // namespace zeroshard

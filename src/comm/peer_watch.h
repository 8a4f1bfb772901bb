#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/wait_listener.h"

namespace zeroshard {

// A process of this host. The start time tells it from a later process with the same pid.
struct ProcessId {
  int32_t pid = 0;          // 0: none, or not visible (another host)
  uint64_t start_time = 0;  // clock ticks since boot
  bool operator==(const ProcessId&) const = default;
};

enum class ProcessState : uint8_t { kRunning, kStopped, kDead };

ProcessId this_process();
// Equal in two processes if a process number means the same in both: boot id and pid namespace. "": not known.
std::string this_host();
ProcessState state_of(const ProcessId& process);

// Distinguishes a peer that died or was stopped from one that is merely slow. A transport asks while it waits for it.
class PeerWatch {
 public:
  // processes[r] is rank r's. Ranks without a pid, or with the caller's own pid, are not watched.
  // `listener`, which may be null, knows of failures on other hosts: check_all() tells them first.
  PeerWatch(std::vector<ProcessId> processes, int64_t stall_timeout_ms,
            std::shared_ptr<WaitListener> listener = nullptr);

  // What is wrong with `rank` ("rank 1 (pid 123) died"); empty if nothing. Cheap: checks at most every 100 ms.
  std::optional<std::string> check(int rank);

  // If anything is wrong with any rank, the state of each: a rank may have ended because another had, or was stopped
  // too briefly to count alone. Empty otherwise.
  std::string check_all();

  // "rank 1 (pid 123)", or "rank 1" when its process is unknown.
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
};

}  // namespace zeroshard

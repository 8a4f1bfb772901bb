#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/peer_watch.h"
#include "comm/rank_numbers.h"
#include "comm/shared_failure.h"
#include "comm/wait_listener.h"

namespace zeroshard {

class DeviceWatch;
class WaitGraph;

struct CommOptions {
  enum class Transport : uint8_t { kAuto, kShm, kProcessGroup };
  Transport transport = Transport::kAuto;  // used only by make_comm()
  int64_t timeout_ms = 600'000;            // a collective without progress for this long fails
  int64_t stall_timeout_ms = 10'000;  // a peer that is stopped (SIGSTOP, a debugger) for this long counts as failed
  int64_t staging_bytes = int64_t{16} << 30;    // shm: address space (not memory) for inputs outside of allocate()
  std::shared_ptr<WaitListener> wait_listener;  // null: no listener
  std::shared_ptr<WaitGraph> wait_graph;        // shared by communicators of the same ranks; null: no search for cycles
  // Shared by all communicators of a thread, so that they fail together. Communicators over shared memory that share a
  // wait_graph fail together even if `failure` is null.
  std::shared_ptr<SharedFailure> failure;
  std::shared_ptr<DeviceWatch> device_watch;  // shared by the device communicators of a thread; null: makes its own
  std::vector<ProcessId> processes;           // processes of the ranks, watched while the ranks connect; empty: unknown
  RankNumbers numbers;                        // the numbers by which error messages name the ranks
};

}  // namespace zeroshard

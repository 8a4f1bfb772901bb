#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/peer_watch.h"
#include "comm/wait_listener.h"

namespace zeroshard {

class WaitGraph;

struct CommOptions {
  enum class Transport : uint8_t { kAuto, kShm, kProcessGroup };
  Transport transport = Transport::kAuto;       // read by make_comm alone
  int64_t timeout_ms = 600'000;                 // a collective that makes no progress for this long fails
  int64_t stall_timeout_ms = 10'000;            // a peer that is stopped (SIGSTOP, a debugger) for this long fails
  int64_t staging_bytes = int64_t{16} << 30;    // shm: address space, not memory, for inputs outside of allocate()
  std::shared_ptr<WaitListener> wait_listener;  // null: nobody asks
  std::shared_ptr<WaitGraph> wait_graph;        // of the communicators that one thread uses; null: this one alone
  // What broke one of the communicators that one thread uses, and so all of them: none waits once more for a rank that
  // is gone. Null: this one alone. Where ranks share memory, wait_graph does this.
  std::shared_ptr<std::string> failure;
  std::vector<ProcessId> processes;  // the ranks', to be watched while they connect; empty: not known
};

}  // namespace zeroshard

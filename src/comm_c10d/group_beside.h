#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <vector>

#include "comm/comm_options.h"
#include "comm/peer_watch.h"

namespace zeroshard {

struct GroupBeside {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<ProcessId> processes;  // of the ranks on this host
};

// A Gloo group of the ranks of `group`, which is of a device, for the memory of the host. Ranks meet by the store of
// `group`, and agree there on a name that no try before has used, so ranks may try again after a failure of some.
// Collective. Throws CommError when a rank has died, has left, or has not come within options.timeout_ms; the program
// may interrupt it.
GroupBeside make_group_beside(c10d::ProcessGroup& group, const CommOptions& options);

}  // namespace zeroshard

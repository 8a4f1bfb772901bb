#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <vector>

#include "comm/comm_options.h"
#include "comm/peer_watch.h"

namespace zeroshard {

struct GroupBeside {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<ProcessId> processes;  // by rank; a rank on another host has pid 0
};

// Creates a Gloo group for host memory, for the ranks of `group`, which is the group of a device. The ranks meet in the
// store of `group`, and agree there on a name for the new group that no earlier try has used. So all ranks may try
// again after a failure. Collective. Throws CommError if `group` has no store, if the store does not answer, if Gloo
// cannot connect the ranks, or if a rank has died, has given up, or has not come within options.timeout_ms. The program
// can interrupt the call.
GroupBeside make_group_beside(c10d::ProcessGroup& group, const CommOptions& options);

}  // namespace zeroshard

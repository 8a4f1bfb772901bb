#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>

#include "comm/comm.h"
#include "comm/comm_options.h"

namespace zeroshard {

class Divergence;

// Creates the communicator that options.transport selects for `group`. On CPU ranks, kAuto selects shared memory if all
// ranks are on one host. If there are several hosts with equally many ranks, kAuto selects shared memory inside each
// host and the group between hosts (TieredComm). In all other cases, and if ranks cannot share memory, kAuto selects
// the group alone. On a device, the communicator uses the group, and host() is a second communicator: a Gloo group or
// shared memory. Ranks meet in the store of the group. Collective. A null group means a world of one rank.
// Communicators that one thread uses should share a `divergence` of their ranks, as they share options.wait_graph.
std::unique_ptr<Comm> make_comm(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device,
                                const CommOptions& options = {}, std::shared_ptr<Divergence> divergence = nullptr);

// Creates the communicator for a group that torch.distributed has registered. `group_name` is ProcessGroup.group_name,
// or "" for a world of one rank.
std::unique_ptr<Comm> make_comm(const std::string& group_name, at::Device device, const CommOptions& options = {});

}  // namespace zeroshard

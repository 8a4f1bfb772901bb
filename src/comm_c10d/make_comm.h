#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>

#include "comm/comm.h"
#include "comm/comm_options.h"

namespace zeroshard {

class Divergence;

// Creates the communicator for `group` according to options.transport. kAuto uses shared memory for CPU ranks of one
// host, and the group itself otherwise or if shared memory cannot be used. On a device, host() is a second
// communicator: a Gloo group or shared memory. Ranks meet in the store of the group. Collective. A null group means a
// world of one. Communicators that one thread uses may share a `divergence` of their ranks, like options.wait_graph.
std::unique_ptr<Comm> make_comm(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device,
                                const CommOptions& options = {}, std::shared_ptr<Divergence> divergence = nullptr);

// The same for a group that torch.distributed registered (ProcessGroup.group_name). "": a world of one.
std::unique_ptr<Comm> make_comm(const std::string& group_name, at::Device device, const CommOptions& options = {});

}  // namespace zeroshard

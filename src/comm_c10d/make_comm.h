#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>

#include "comm/comm.h"
#include "comm/comm_options.h"

namespace zeroshard {

class Divergence;

// Creates the communicator that options.transport selects for the ranks of `group`. Collective. A null `group` means a
// world of one rank.
//
// On the CPU, kProcessGroup selects `group`, and kShm selects shared memory. kAuto selects shared memory if all ranks
// are on one host. If there are several hosts, each with the same number of consecutive ranks (at least two), and
// reaches_other_hosts() is true on every rank, kAuto selects shared memory inside each host and Gloo between hosts
// (TieredComm). In all other cases, and if ranks cannot share memory, kAuto selects `group` alone.
//
// On a device, the communicator uses `group`. host() is a second communicator, over shared memory or over a new Gloo
// group. To create it, the ranks meet in the store of `group`. Throws ConfigError for kShm on a device or on several
// hosts. Communicators of the same ranks that one thread uses should share one `divergence`. If it is null, the
// function creates one.
std::unique_ptr<Comm> make_comm(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Device device,
                                const CommOptions& options = {}, std::shared_ptr<Divergence> divergence = nullptr);

// Creates the communicator for a group that torch.distributed has registered. `group_name` is ProcessGroup.group_name,
// or "" for a world of one rank.
std::unique_ptr<Comm> make_comm(const std::string& group_name, at::Device device, const CommOptions& options = {});

}  // namespace zeroshard

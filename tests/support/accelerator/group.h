#pragma once
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace zeroshard::accelerator {

// A process group for simulated devices: Gloo over the real memory. As NCCL's, a collective runs on a stream of its own
// after what the current stream has, and Work::wait() makes the current stream wait for it, not the host.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, int device);
// The device's part of such a group alone, as NCCL's is; for torch.distributed.Backend.register_backend.
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               int device);
// How many groups of the device were aborted.
int aborted_groups(int device);

}  // namespace zeroshard::accelerator

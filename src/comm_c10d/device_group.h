#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

// Creates the process group of a device, for C++ programs without Python.
namespace zeroshard {

// Creates a process group over `store` for the memory of `device`. Only CUDA has a backend here, which is NCCL. Returns
// when all ranks have called this function and are connected. If the ranks meet on a loopback address and
// NCCL_SOCKET_IFNAME is unset, NCCL listens only on loopback. Throws ConfigError if this build has no collectives for
// the device.
c10::intrusive_ptr<c10d::ProcessGroup> make_device_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                         int world_size, c10::Device device, int64_t timeout_ms);

}  // namespace zeroshard

#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

// For C++ programs without Python.
namespace zeroshard {

// A group over `store` for the memory of `device`: NCCL's for CUDA. Connects, so it returns when all ranks have called
// it. NCCL listens on loopback alone where the ranks meet on a loopback address. Throws ConfigError if this build has
// no collectives for the device.
c10::intrusive_ptr<c10d::ProcessGroup> make_device_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                         int world_size, c10::Device device, int64_t timeout_ms);

}  // namespace zeroshard

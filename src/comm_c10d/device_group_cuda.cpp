// torch's header for NCCL includes nccl.h, and more headers of CUDA than the runtime's. If one of them is not
// installed, this file is compiled without NCCL, and make_device_group() always throws.
#if __has_include(<nccl.h>) && __has_include(<cusparse.h>) && __has_include(<cublas_v2.h>) && __has_include(<cusolverDn.h>)
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/format.h"
#include "comm_c10d/device_group.h"
#include "comm_c10d/gloo_group.h"
#include "zeroshard/error.h"

namespace zeroshard {

c10::intrusive_ptr<c10d::ProcessGroup> make_device_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                         int world_size, c10::Device device, int64_t timeout_ms) {
#ifdef USE_C10D_NCCL
  if (device.is_cuda()) {
    if (meets_on_loopback()) ::setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>("zeroshard/nccl", store), rank, world_size, options);
    nccl->eagerConnectSingleDevice(device);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
    group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, nccl);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    return group;
  }
  constexpr const char* kWhy = "";
#else
  (void)store, (void)rank, (void)timeout_ms;
  constexpr const char* kWhy =
      " (nccl.h, or CUDA's cublas_v2.h, cusparse.h and cusolverDn.h, were not found when it was built)";
#endif
  throw ConfigError(concat("this build has no collectives for ", world_size, " ranks on ", device.str(), kWhy,
                           ": give World process groups of your own, start one rank, or use the CPU"));
}

}  // namespace zeroshard

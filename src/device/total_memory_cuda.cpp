#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "device/total_memory.h"

namespace zeroshard {

std::optional<int64_t> total_memory(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  const c10::cuda::OptionalCUDAGuard guard(device);
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) return int64_t(total);
  static_cast<void>(cudaGetLastError());  // clears the error, because the next launch would otherwise report it
  return std::nullopt;
}

}  // namespace zeroshard

#include <cuda_runtime_api.h>

#include "device/pinning.h"

namespace zeroshard {

std::string pin_for_cuda(void* memory, int64_t bytes) {
  const cudaError_t error = cudaHostRegister(memory, size_t(bytes), cudaHostRegisterPortable);
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // clears the error, because the next launch would otherwise report it
  return cudaGetErrorString(error);
}

void unpin_for_cuda(void* memory) noexcept {
  if (cudaHostUnregister(memory) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace zeroshard

#include <c10/cuda/CUDAStream.h>

#include "base/check.h"
#include "device/cuda_kernels.h"
#ifdef ZEROSHARD_NVCC
#include "device/cuda_launch.h"
#endif

namespace zeroshard {

#ifdef ZEROSHARD_NVCC
namespace cuda {

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

void report(const char* what) {
  throw Error(concat("a kernel of zeroshard's could not be launched: ", what));
}

}  // namespace cuda

const DeviceKernels* cuda_kernels() {
  static const DeviceKernels all{&cuda::table(),     cuda::pack_all, cuda::add_squares, cuda::take_written,
                                 cuda::add_checksum, cuda::decode,   cuda::encode};
  return &all;
}
#else
const DeviceKernels* cuda_kernels() {
  return nullptr;
}
#endif

}  // namespace zeroshard

#pragma once
#include <cuda_runtime_api.h>

#include <span>

#include "device/pack_item.h"
#include "kernels/table.h"

// The functions by which kernels.cu and kernels_cuda.cpp call each other. The files are separate, because nvcc compiles
// kernels.cu without torch's headers. DeviceKernels describes the functions of kernels.cu.
namespace zeroshard::cuda {

const kernels::KernelTable& table();
void pack_all(std::span<const PackItem> items, DType src_dtype, DType dst_dtype, float scale);
void add_squares(const void* data, DType dtype, int64_t numel, int64_t* limbs);
void take_written(float* master, const void* param, DType dtype, int64_t numel);
void add_checksum(const void* data, int64_t bytes, int64_t* sum);
void decode(kernels::CodedValues from, int64_t numel, float* to);
void encode(const float* values, int64_t numel, kernels::CodedValues to);

// Returns torch's current stream of the current device.
cudaStream_t current_stream();
// Throws Error, which says that a kernel could not be launched because of `what`.
[[noreturn]] void report(const char* what);

}  // namespace zeroshard::cuda

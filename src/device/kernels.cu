// The kernels of src/kernels for CUDA: the same code, one launch each. Compiled with -fmad=false, so that additions and
// products are rounded where the CPU rounds them; fma(), division and square roots are IEEE's on both.
#include <algorithm>
#include <cstdint>

#include "device/cuda_launch.h"
#include "kernels/optim_impl.h"
#include "kernels/simd_four.h"
#include "device/exact_sum.h"
#include "layout/shard_layout.h"

namespace zeroshard::kernels {
namespace {

constexpr int kThreads = 256, kNumLimbs = int{ExactSum::kNumLimbs};

void check_launch() {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) cuda::report(cudaGetErrorString(error));
}

template <class V, class Step>
__global__ void __launch_bounds__(kThreads) run_step(int64_t numel, Step step) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * V::kWidth;
  if (i + V::kWidth <= numel) {
    step(Body<V>{i});
  } else if (i < numel) {
    step(Tail<V>{i, static_cast<int>(numel - i)});
  }
}

struct CudaVector : FourLanes {
  static constexpr bool kOnDevice = true;

  template <class Step>
  static void for_each(int64_t numel, const Step& step) {
    if (numel == 0) return;
    constexpr int64_t kPerBlock = int64_t{kThreads} * kWidth;
    const auto blocks = static_cast<unsigned>((numel + kPerBlock - 1) / kPerBlock);
    run_step<CudaVector><<<blocks, kThreads, 0, cuda::current_stream()>>>(numel, step);
    check_launch();
  }
};

// As many tensors as the parameters of a launch have room for.
struct PackItems {
  static constexpr int kMost = 64;
  const void* src[kMost];
  void* dst[kMost];
  int64_t numel[kMost];
  unsigned first_block[kMost];
  int count = 0;
};

template <class V, typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads) run_pack_all(PackItems items, float scale) {
  int item = items.count - 1;
  while (items.first_block[item] > blockIdx.x) --item;
  const int64_t block = blockIdx.x - items.first_block[item], numel = items.numel[item];
  const int64_t i = (block * kThreads + threadIdx.x) * V::kWidth;
  const Pack<V, Src, Dst> step{items.src[item], items.dst[item], V::set(scale)};
  if (i + V::kWidth <= numel) {
    step(Body<V>{i});
  } else if (i < numel) {
    step(Tail<V>{i, static_cast<int>(numel - i)});
  }
}

template <typename Src, typename Dst>
void pack_all(std::span<const PackItem> all, float scale) {
  using V = CudaVector;
  constexpr int64_t kPerBlock = int64_t{kThreads} * V::kWidth;
  PackItems items;
  unsigned blocks = 0;
  const auto launch = [&] {
    if (items.count == 0) return;
    run_pack_all<V, Src, Dst><<<blocks, kThreads, 0, cuda::current_stream()>>>(items, scale);
    check_launch();
    items.count = 0;
    blocks = 0;
  };
  for (const PackItem& item : all) {
    if (item.numel == 0) continue;
    items.src[items.count] = item.src;
    items.dst[items.count] = item.dst;
    items.numel[items.count] = item.numel;
    items.first_block[items.count++] = blocks;
    blocks += static_cast<unsigned>((item.numel + kPerBlock - 1) / kPerBlock);
    if (items.count == PackItems::kMost) launch();
  }
  launch();
}

template <typename Src>
void pack_all_to(std::span<const PackItem> items, DType dst_dtype, float scale) {
  if (dst_dtype == DType::kFloat32) return pack_all<Src, float>(items, scale);
  if (dst_dtype == DType::kBFloat16) return pack_all<Src, Bf16>(items, scale);
  pack_all<Src, Fp16>(items, scale);
}

// Adds a double, which is not negative, to limbs as ExactSum::add does.
__device__ void add_to_limbs(double value, unsigned long long* limbs) {
  const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(value));
  const auto exponent = static_cast<int>((bits >> 52) & 0x7ff);
  if (exponent == 0x7ff) {
    atomicAdd(&limbs[kNumLimbs - 1], 1ULL);
    return;
  }
  constexpr unsigned long long kLow = 0xffffffffULL;
  const unsigned long long mantissa = (bits & ((1ULL << 52) - 1)) | (exponent != 0 ? 1ULL << 52 : 0);
  const int position = exponent > 0 ? exponent - 1 : 0, limb = position >> 5, shift = position & 31;
  const unsigned long long low = (mantissa & kLow) << shift, high = (mantissa >> 32) << shift;
  atomicAdd(&limbs[limb], low & kLow);
  atomicAdd(&limbs[limb + 1], (low >> 32) + (high & kLow));
  atomicAdd(&limbs[limb + 2], high >> 32);
}

// Blocks of kBlockNumel elements are added by halves, blocks exactly.
template <typename T>
__global__ void __launch_bounds__(kThreads) run_squares(const T* data, int64_t numel, unsigned long long* limbs) {
  static_assert(kBlockNumel == 4 * kThreads);
  __shared__ double halves[kThreads];
  __shared__ unsigned long long sums[kNumLimbs];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kNumLimbs) sums[thread] = 0;
  const auto square_at = [&](int64_t i) {
    const double value = i < numel ? static_cast<double>(to_float(data[i])) : 0.0;
    return value * value;
  };
  for (int64_t begin = int64_t{blockIdx.x} * kBlockNumel; begin < numel; begin += int64_t{gridDim.x} * kBlockNumel) {
    const int64_t i = begin + thread;
    const double first = square_at(i) + square_at(i + 2 * kThreads);
    const double second = square_at(i + kThreads) + square_at(i + 3 * kThreads);
    halves[thread] = first + second;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread < half) halves[thread] = halves[thread] + halves[thread + half];
    }
    if (thread == 0) add_to_limbs(halves[0], sums);
    __syncthreads();
  }
  __syncthreads();
  if (thread < kNumLimbs && sums[thread] != 0) atomicAdd(&limbs[thread], sums[thread]);
}

template <typename T>
void square(const void* data, int64_t numel, int64_t* limbs) {
  if (numel == 0) return;
  constexpr int64_t kMostBlocks = 2048;  // each adds to the limbs once
  const auto blocks = static_cast<unsigned>(std::min((numel + kBlockNumel - 1) / kBlockNumel, kMostBlocks));
  run_squares<<<blocks, kThreads, 0, cuda::current_stream()>>>(static_cast<const T*>(data), numel,
                                                              reinterpret_cast<unsigned long long*>(limbs));
  check_launch();
}

}  // namespace
}  // namespace zeroshard::kernels

namespace zeroshard::cuda {

const kernels::KernelTable& table() {
  static const kernels::KernelTable all = kernels::make_device_table<kernels::CudaVector>("cuda");
  return all;
}

void pack_all(std::span<const PackItem> items, DType src_dtype, DType dst_dtype, float scale) {
  if (src_dtype == DType::kFloat32) return kernels::pack_all_to<float>(items, dst_dtype, scale);
  if (src_dtype == DType::kBFloat16) return kernels::pack_all_to<kernels::Bf16>(items, dst_dtype, scale);
  kernels::pack_all_to<kernels::Fp16>(items, dst_dtype, scale);
}

void add_squares(const void* data, DType dtype, int64_t numel, int64_t* limbs) {
  switch (dtype) {
    case DType::kFloat32:
      return kernels::square<float>(data, numel, limbs);
    case DType::kBFloat16:
      return kernels::square<kernels::Bf16>(data, numel, limbs);
    case DType::kFloat16:
      return kernels::square<kernels::Fp16>(data, numel, limbs);
    default:
      report("squares of a type that is neither fp32, bf16 nor fp16");
  }
}

}  // namespace zeroshard::cuda

// Kernels for CUDA. Packing, sums of pieces and optimizers are the code of src/kernels, compiled for the device. The
// file is compiled with -fmad=false, so that nvcc does not fuse products and sums that the CPU rounds one by one.
// fma(), division and square roots follow IEEE on the CPU and on CUDA.
#include <algorithm>
#include <cstdint>

#include "device/cuda_launch.h"
#include "device/exact_sum.h"
#include "kernels/code_element.h"
#include "kernels/optim_impl.h"
#include "kernels/simd_four.h"
#include "layout/shard_layout.h"

namespace zeroshard::kernels {
namespace {

constexpr int kThreads = 256, kLanes = 32, kWarps = kThreads / kLanes, kNumLimbs = int{ExactSum::kNumLimbs};
constexpr int64_t kMostBlocks = 2048;  // limits the blocks of threads in launches whose threads loop

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

// The tensors of one launch. This struct is one of the parameters of the launch, which may have 4 KiB in all.
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

// A warp holds an ExactSum together. Lane l has the limbs l, l + 32 and l + 64.
constexpr int kLimbsPerLane = (kNumLimbs + kLanes - 1) / kLanes;

// Adds a double as ExactSum::add() does. All lanes of a warp must pass the same `value`, which must not be negative.
// `own` has the limbs of this lane.
__device__ void add_to_limbs(double value, int lane, unsigned long long* own) {
  const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(value));
  const auto exponent = static_cast<int>((bits >> 52) & 0x7ff);
  constexpr unsigned long long kLow = 0xffffffffULL;
  const unsigned long long mantissa = (bits & ((1ULL << 52) - 1)) | (exponent != 0 ? 1ULL << 52 : 0);
  const int position = exponent > 0 ? exponent - 1 : 0, shift = position & 31;
  const unsigned long long low = (mantissa & kLow) << shift, high = (mantissa >> 32) << shift;
  const int limb = exponent == 0x7ff ? kNumLimbs - 1 : position >> 5;
  const unsigned long long parts[] = {exponent == 0x7ff ? 1ULL : low & kLow,
                                      exponent == 0x7ff ? 0ULL : (low >> 32) + (high & kLow),
                                      exponent == 0x7ff ? 0ULL : high >> 32};
#pragma unroll
  for (int i = 0; i < kLimbsPerLane; ++i) {
    const int part = lane + i * kLanes - limb;
    own[i] += part == 0 ? parts[0] : part == 1 ? parts[1] : part == 2 ? parts[2] : 0;
  }
}

// Sums the first 2 * kHalf elements of `sums` by halves. Each step adds the second half of the elements to the first
// half, with which the next step goes on. The result is sums[0].
template <int kHalf>
__device__ void add_by_halves(double* sums) {
#pragma unroll
  for (int k = 0; k < kHalf; ++k) sums[k] = sums[k] + sums[k + kHalf];
  if constexpr (kHalf > 1) add_by_halves<kHalf / 2>(sums);
}

// Adds the sum of the squares of each block of kBlockNumel elements exactly to `limbs`. A warp sums one such block at a
// time. Lane l takes the elements l, l + 32, l + 64, ... of the block, and adds their squares by halves
// (add_by_halves()). Then the sums of the lanes are added by halves.
template <typename T>
__global__ void __launch_bounds__(kThreads) run_squares(const T* data, int64_t numel, unsigned long long* limbs) {
  constexpr int kEach = int{kBlockNumel} / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t distance = int64_t{gridDim.x} * kWarps * kBlockNumel;
  unsigned long long own[kLimbsPerLane] = {};
  for (int64_t begin = (int64_t{blockIdx.x} * kWarps + warp) * kBlockNumel; begin < numel; begin += distance) {
    float values[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = begin + lane + k * kLanes;
      values[k] = i < numel ? to_float(data[i]) : 0.0f;
    }
    double sums[kEach / 2];
#pragma unroll
    for (int k = 0; k < kEach / 2; ++k) {
      const double one = values[k], other = values[k + kEach / 2];
      sums[k] = one * one + other * other;
    }
    add_by_halves<kEach / 4>(sums);
    double sum = sums[0];
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) sum = sum + __shfl_down_sync(0xffffffffu, sum, half);
    add_to_limbs(__shfl_sync(0xffffffffu, sum, 0), lane, own);
  }
  for (int i = 0; i < kLimbsPerLane; ++i)
    if (own[i] != 0) atomicAdd(&limbs[lane + i * kLanes], own[i]);
}

template <typename T>
void square(const void* data, int64_t numel, int64_t* limbs) {
  if (numel == 0) return;
  constexpr int64_t kPerBlock = int64_t{kWarps} * kBlockNumel;
  const auto blocks = static_cast<unsigned>(std::min((numel + kPerBlock - 1) / kPerBlock, kMostBlocks));
  run_squares<<<blocks, kThreads, 0, cuda::current_stream()>>>(static_cast<const T*>(data), numel,
                                                               reinterpret_cast<unsigned long long*>(limbs));
  check_launch();
}

template <class V, typename Param>
struct TakeWritten {
  float* master;
  const void* param;

  template <class Where>
  __device__ void operator()(Where where) const {
    auto weights = where.template load<float>(master);
    if (V::template take_written<Param>(weights, where.template load<Param>(param)))
      where.template store<float>(master, weights);
  }
};

// Returns the 8-byte word number `index`. If the last word has fewer bytes, it is padded with zeros.
__device__ uint64_t word_at(const void* data, int64_t bytes, int64_t index, bool is_aligned) {
  if (is_aligned && (index + 1) * 8 <= bytes) return static_cast<const uint64_t*>(data)[index];
  uint64_t word = 0;
  for (int part = 0; part < 4; ++part)
    if (index * 8 + part * 2 < bytes)
      word |= uint64_t{static_cast<const uint16_t*>(data)[index * 4 + part]} << (16 * part);
  return word;
}

// Mixes the bits of x. This is the finalizer of SplitMix64: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom
// number generators" (2014).
__device__ uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__global__ void __launch_bounds__(kThreads) run_checksum(const void* data, int64_t bytes, unsigned long long* sum) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % 8 == 0;
  const int64_t words = (bytes + 7) / 8, distance = int64_t{gridDim.x} * kThreads;
  unsigned long long own = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += distance)
    own += mixed(word_at(data, bytes, i, is_aligned) + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u);
  for (int half = kLanes / 2; half > 0; half /= 2) own += __shfl_down_sync(0xffffffffu, own, half);
  if (threadIdx.x % kLanes == 0) atomicAdd(sum, own);
}

// The tables for unsigned and signed codes, in the constant memory of the device.
__constant__ DecodeTable device_decode[2] = {make_decode_table(false), make_decode_table(true)};
__constant__ EncodeTable device_encode[2] = {make_encode_table(false), make_encode_table(true)};

static_assert(kThreads == kScaledNumel, "a thread of a block has one of its codes");

__global__ void __launch_bounds__(kThreads)
    run_decode(const uint8_t* codes, const float* scales, bool is_signed, int64_t numel, float* to) {
  __shared__ float map[kThreads];
  map[threadIdx.x] = decode_element(device_decode[is_signed ? 1 : 0], threadIdx.x, is_signed);
  __syncthreads();
  const int64_t distance = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numel; i += distance)
    to[i] = map[codes[i]] * scales[i / kThreads];
}

// Returns to each thread of a block the largest magnitude among the values of all its threads. `parts` is shared memory
// of kWarps floats.
__device__ float most_of_block(float value, float* parts) {
  float most = fabsf(value);
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, half));
  __syncthreads();  // threads may still read `parts` from the call before
  if (threadIdx.x % kLanes == 0) parts[threadIdx.x / kLanes] = most;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) most = fmaxf(most, parts[warp]);
  return most;
}

__global__ void __launch_bounds__(kThreads)
    run_encode(const float* values, int64_t numel, bool is_signed, uint8_t* codes, float* scales) {
  __shared__ float parts[kWarps];
  __shared__ EncodeTable table;
  // The table is copied to shared memory, because threads look up different entries, for which constant memory is slow.
  constexpr int kWords = int{sizeof(EncodeTable) / sizeof(uint32_t)};
  static_assert(kWords <= kThreads);
  if (threadIdx.x < kWords)
    reinterpret_cast<uint32_t*>(&table)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(&device_encode[is_signed ? 1 : 0])[threadIdx.x];
  for (int64_t block = blockIdx.x; block * kThreads < numel; block += gridDim.x) {
    const int64_t i = block * kThreads + threadIdx.x;
    const float value = i < numel ? values[i] : 0.0f;
    const float scale = scale_of(most_of_block(value, parts));  // its barriers also wait for the copy of the table
    if (i < numel) codes[i] = encode_element(table, value, factors_of(scale), is_signed);
    if (threadIdx.x == 0) scales[block] = scale;
  }
}

unsigned coded_blocks(int64_t numel) {
  return static_cast<unsigned>(std::min((numel + kThreads - 1) / kThreads, kMostBlocks));
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

void take_written(float* master, const void* param, DType dtype, int64_t numel) {
  using kernels::CudaVector, kernels::TakeWritten;
  if (dtype == DType::kBFloat16)
    return CudaVector::for_each(numel, TakeWritten<CudaVector, kernels::Bf16>{master, param});
  CudaVector::for_each(numel, TakeWritten<CudaVector, kernels::Fp16>{master, param});
}

void add_checksum(const void* data, int64_t bytes, int64_t* sum) {
  using namespace kernels;
  if (bytes == 0) return;
  constexpr int64_t kPerBlock = int64_t{kThreads} * 8;
  const auto blocks = static_cast<unsigned>(std::min((bytes + kPerBlock - 1) / kPerBlock, kMostBlocks));
  run_checksum<<<blocks, kThreads, 0, current_stream()>>>(data, bytes, reinterpret_cast<unsigned long long*>(sum));
  check_launch();
}

void decode(kernels::CodedValues from, int64_t numel, float* to) {
  using namespace kernels;
  if (numel == 0) return;
  run_decode<<<coded_blocks(numel), kThreads, 0, current_stream()>>>(static_cast<const uint8_t*>(from.codes),
                                                                     from.scales, from.is_signed, numel, to);
  check_launch();
}

void encode(const float* values, int64_t numel, kernels::CodedValues to) {
  using namespace kernels;
  if (numel == 0) return;
  run_encode<<<coded_blocks(numel), kThreads, 0, current_stream()>>>(values, numel, to.is_signed,
                                                                     static_cast<uint8_t*>(to.codes), to.scales);
  check_launch();
}

}  // namespace zeroshard::cuda

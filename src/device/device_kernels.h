#pragma once
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <span>

#include "device/pack_item.h"
#include "kernels/table.h"

namespace zeroshard {

// The kernels of a type of device, such as CUDA. Each is one launch on the current stream of the memory's device. Their
// results have the same bits as the CPU's kernels.
struct DeviceKernels {
  // The table has functions only for packing, sums and updates; its other entries are null. If sum_in_order gets more
  // than three pieces, they must lie at equal distances in memory.
  const kernels::KernelTable* table = nullptr;
  // Packs many tensors, each like table->pack. One launch packs some dozens of tensors.
  void (*pack_all)(std::span<const PackItem> items, DType src_dtype, DType dst_dtype, float scale) = nullptr;
  // Adds the squares of `numel` elements to `limbs` (ExactSum::kNumLimbs of them, on the device). It sums block by
  // block, like sum_of_squares() of device_squares.h.
  void (*add_squares)(const void* data, DType dtype, int64_t numel, int64_t* limbs) = nullptr;
  // Copies the user's writes to 16-bit parameters into master weights, like take_written() of optim/written.h. `dtype`
  // is the dtype of the parameters.
  void (*take_written)(float* master, const void* param, DType dtype, int64_t numel) = nullptr;
  // Adds a checksum of `bytes` bytes to `sum`, which is on the device. The number of bytes and the address must be
  // even. The checksum adds up a mixture of each 8-byte word and its index; the last word is padded with zeros. Two
  // memories with different contents have the same checksum only in one case in 2^64.
  void (*add_checksum)(const void* data, int64_t bytes, int64_t* sum) = nullptr;
  // Decode and encode the moments of `numel` elements in blocks of kScaledNumel; the last block may be incomplete. The
  // codes and the scales are those of a CPU's update.
  void (*decode)(kernels::CodedValues from, int64_t numel, float* to) = nullptr;
  void (*encode)(const float* values, int64_t numel, kernels::CodedValues to) = nullptr;
};

// Returns the kernels of a type of device; null if there are none, and then LibTorch's operators are used.
const DeviceKernels* device_kernels(c10::DeviceType type);
// Sets the kernels of a type of device, before its first engine. `kernels` must live as long as the process. Null: the
// kernels that zeroshard was built with, if any.
void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

}  // namespace zeroshard

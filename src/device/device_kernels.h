#pragma once
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <span>

#include "device/pack_item.h"
#include "kernels/table.h"

namespace zeroshard {

// The kernels of a type of device. Each is one launch on the current stream of the memory's device. Their results have
// the same bits as on the CPU.
struct DeviceKernels {
  // The table has functions only for packing, sums and updates; its other entries are null. If a sum_in_order has more
  // than three pieces, they must lie at equal distances.
  const kernels::KernelTable* table = nullptr;
  // Packs many tensors, each like table->pack. One launch takes some dozens.
  void (*pack_all)(std::span<const PackItem> items, DType src_dtype, DType dst_dtype, float scale) = nullptr;
  // Adds the squares of `numel` elements to `limbs` (ExactSum::kNumLimbs of them, on the device). It works by blocks,
  // like sum_of_squares() of device_squares.h.
  void (*add_squares)(const void* data, DType dtype, int64_t numel, int64_t* limbs) = nullptr;
  // Works like take_written() of optim/written.h. `dtype` is the 16-bit dtype of the parameters.
  void (*take_written)(float* master, const void* param, DType dtype, int64_t numel) = nullptr;
  // Adds a checksum of `bytes` bytes to `sum`, which is on the device. The number of bytes and the address must be
  // even. The checksum adds up a mixture of each 8-byte word and its index; the last word is padded with zeros.
  // Different memory has another checksum, except for one case in 2^64.
  void (*add_checksum)(const void* data, int64_t bytes, int64_t* sum) = nullptr;
  // Decode and encode the moments of `numel` elements in blocks of kScaledNumel; the last block may be incomplete. The
  // codes and the scales are those of a CPU's update.
  void (*decode)(kernels::CodedValues from, int64_t numel, float* to) = nullptr;
  void (*encode)(const float* values, int64_t numel, kernels::CodedValues to) = nullptr;
};

// Returns null if there are none. LibTorch's operators are used then.
const DeviceKernels* device_kernels(c10::DeviceType type);
// Sets the kernels of a type of device, before its first engine. `kernels` must live as long as the process. Null: the
// kernels that zeroshard was built with, if any.
void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

}  // namespace zeroshard

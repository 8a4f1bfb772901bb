#pragma once
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <span>

#include "device/pack_item.h"
#include "kernels/table.h"

namespace zeroshard {

// Kernels of a type of device: one launch each, on the stream that is current where the memory lies. Their results have
// the bits of the CPU's.
struct DeviceKernels {
  // Packing, sums and updates; the table's other functions are null. The pieces of a sum_in_order lie at equal
  // distances where there are more than three.
  const kernels::KernelTable* table = nullptr;
  // Packs many tensors as table->pack does each: a launch for some dozens.
  void (*pack_all)(std::span<const PackItem> items, DType src_dtype, DType dst_dtype, float scale) = nullptr;
  // Adds to `limbs` (ExactSum::kNumLimbs of them, on the device) the squares of `numel` elements, by blocks as
  // sum_of_squares() of device_squares.h does.
  void (*add_squares)(const void* data, DType dtype, int64_t numel, int64_t* limbs) = nullptr;
};

// Null where there are none: LibTorch's operations do the work there.
const DeviceKernels* device_kernels(c10::DeviceType type);
// `kernels` lives as long as the process; null: those that zeroshard was built with, if any. Before the first engine on
// such a device.
void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

}  // namespace zeroshard

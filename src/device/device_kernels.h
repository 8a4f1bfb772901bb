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
  // As take_written() of optim/written.h does. `dtype`: of the parameters, with 16 bits.
  void (*take_written)(float* master, const void* param, DType dtype, int64_t numel) = nullptr;
  // Adds to `sum`, on the device, a checksum of `bytes` bytes, an even number of them at an even address: the sum over
  // words of 8 bytes, the last filled up with zeros, of a mixture of each word and its number. So different memory has
  // another checksum, but for one case in 2^64.
  void (*add_checksum)(const void* data, int64_t bytes, int64_t* sum) = nullptr;
};

// Null where there are none: LibTorch's operations do the work there.
const DeviceKernels* device_kernels(c10::DeviceType type);
// `kernels` lives as long as the process; null: those that zeroshard was built with, if any. Before the first engine on
// such a device.
void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

}  // namespace zeroshard

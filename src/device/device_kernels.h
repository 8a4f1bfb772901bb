#pragma once
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <span>

#include "device/pack_item.h"
#include "kernels/table.h"

namespace zeroshard {

// The kernels of a type of device, such as CUDA. The functions start work on the current stream of the current device,
// which must be the device of the memory, and do not wait. Each call except pack_all() is one launch. The results of
// the table, of pack_all() and of take_written() have the same bits as those on the CPU. A null function means that the
// device has no such kernel.
struct DeviceKernels {
  // The table has only pack, pack_add, sum_in_order, and the optimizers with fp32 moments. All other entries are null.
  // If sum_in_order gets more than three pieces, the pieces must lie at equal distances in memory.
  const kernels::KernelTable* table = nullptr;
  // Packs each tensor as table->pack does. One launch packs dozens of tensors.
  void (*pack_all)(std::span<const PackItem> items, DType src_dtype, DType dst_dtype, float scale) = nullptr;
  // Adds the squares of `numel` elements to `limbs`, the ExactSum::kNumLimbs limbs of an ExactSum on the device. Sums
  // block by block, like sum_of_squares() of device_squares.h.
  void (*add_squares)(const void* data, DType dtype, int64_t numel, int64_t* limbs) = nullptr;
  // Copies what the user has written to 16-bit parameters into their master weights, as take_written() of
  // optim/written.h does. `dtype` is the dtype of the parameters.
  void (*take_written)(float* master, const void* param, DType dtype, int64_t numel) = nullptr;
  // Adds a checksum of `bytes` bytes to `sum`, which is on the device. The number of bytes and the address must be
  // even. The last 8-byte word is padded with zeros. Each word is mixed with its index into a 64-bit number. The
  // checksum is the sum of these numbers modulo 2^64. The probability that two different contents have the same
  // checksum is about 2^-64.
  void (*add_checksum)(const void* data, int64_t bytes, int64_t* sum) = nullptr;
  // decode() and encode() convert the moments of `numel` elements from and to 8-bit codes, in blocks of kScaledNumel.
  // The last block can be incomplete. Both functions use the same codes and scales as an update on the CPU.
  void (*decode)(kernels::CodedValues from, int64_t numel, float* to) = nullptr;
  void (*encode)(const float* values, int64_t numel, kernels::CodedValues to) = nullptr;
};

// Returns the kernels of a type of device. Returns null if there are none, so that the caller must use LibTorch's
// operators.
const DeviceKernels* device_kernels(c10::DeviceType type);
// Sets the kernels of a type of device. Must be called before the first engine on such a device. `kernels` must live as
// long as the process. Null selects the kernels that zeroshard was built with, if there are any.
void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

// Arithmetic on flat 1-D tensors on any device. The CPU uses the one-pass kernels of src/kernels. A device uses its own
// kernels (device_kernels.h) if it has some for the dtypes, and LibTorch's operators if not. On the CPU, elements are
// split among at::get_num_threads() threads, but the results do not depend on the number of threads.
namespace zeroshard::math {

// A tensor of any shape, and the position in a flat tensor to which it is packed. The first element of `in` goes to
// element `begin`.
struct Packed {
  at::Tensor in;
  int64_t begin = 0;
};
// Writes round(in * scale) to `out`, from element packed.begin on. If `add` is true, writes round(out + in * scale).
void pack(const Packed& packed, const at::Tensor& out, float scale, bool add = false);

// Returns whether pack_all() can pack `in` together with other tensors, so that one launch packs many gradients. It can
// if the device has kernels of its own for these dtypes, and `in` is a contiguous tensor on the device of `out`.
bool packs_together(const at::Tensor& in, const at::Tensor& out);
// Packs all tensors in a few launches. packs_together() must be true for each of them, and all inputs must have one
// dtype.
void pack_all(std::span<const Packed> all, const at::Tensor& out, float scale);

// Computes out = round(sum * scale), or out = round(out + sum * scale) if `accumulate` is true. The sum of the pieces
// is in fp32, in the fixed order of kernels::sum_in_order(). Each piece has out.numel() elements of `type`. On a device
// with kernels, more than three pieces must lie at equal distances in memory. If `squares` is given (only on the CPU),
// adds the squares of the new `out` to `squares`, as add_sum_of_squares() does, while `out` is in the cache.
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate, ExactSum* squares = nullptr);

// Adds the squares of `flat` to `sum`. On the CPU, kernels::sum_of_squares() sums each piece of 2^15 elements with a
// precision of at least 70 bits, and the pieces are added exactly. A double has only 53 bits. So it happens only once
// in millions of times that the sum, rounded to a double, depends on how elements are cut into tensors. On a device,
// sum_of_squares() of device/device_squares.h computes the sum.
void add_sum_of_squares(const at::Tensor& flat, ExactSum& sum);

// decode() and encode() convert moments from and to 8-bit codes, in blocks of kScaledNumel elements. The last block can
// be incomplete. `codes` has one byte for each element, and `scales` has one fp32 value for each block. `values` and
// `to` are fp32. Both functions use the same codes as an update on the CPU. But encode() on the CPU may choose another
// scale for values that decode() made, so that decoding gives these values again; see kernels::encode().
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);

// These functions do the same as those with the same names above, but use LibTorch's operators. The functions above
// call them if a device has no kernels for the dtypes.
namespace aten {
void pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add);
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate);
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);
}  // namespace aten

}  // namespace zeroshard::math

#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

// Arithmetic on flat 1-D tensors on any device. The CPU and devices with kernels (device_kernels.h) use zeroshard's
// one-pass kernels. Other devices use LibTorch's operators. On the CPU, elements are split among at::get_num_threads()
// threads at fixed boundaries, so the results do not depend on the number of threads.
namespace zeroshard::math {

// A dense tensor and its place in a flat tensor. The first element of `in` is at element `begin` of the flat tensor.
struct Packed {
  at::Tensor in;
  int64_t begin = 0;
};
// Writes round(in * scale) to `out`, from element packed.begin on. If `add` is true, writes round(out + in * scale).
void pack(const Packed& packed, const at::Tensor& out, float scale, bool add = false);

// Returns whether pack_all() can pack `in` together with other tensors. It can if the device has kernels of its own for
// these dtypes, because one launch then packs many gradients.
bool packs_together(const at::Tensor& in, const at::Tensor& out);
// Packs all tensors in a few launches. All tensors must be on one device, and all inputs must have one dtype.
void pack_all(std::span<const Packed> all, const at::Tensor& out, float scale);

// Computes out = round((pieces[0] + pieces[1] + ...) * scale), in fp32 and in the fixed order of
// kernels::sum_in_order(). If `accumulate` is true, adds the result to `out`. Each piece has out.numel() elements of
// `type`. If `squares` is given (only on the CPU), adds the squares of the result to `squares`, as add_sum_of_squares()
// does, while the result is in the cache.
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate, ExactSum* squares = nullptr);

// Adds the squares of `flat` to `sum`. kernels::sum_of_squares() sums each piece of 2^15 elements to 70 bits or more,
// and the pieces are added exactly. So the sum, rounded to a double, does not depend on how elements are cut into
// tensors, except once in millions of times. On a device, calls sum_of_squares() of device/device_squares.h.
void add_sum_of_squares(const at::Tensor& flat, ExactSum& sum);

// decode() and encode() convert moments in blocks of kScaledNumel elements. The last block can be incomplete. `codes`
// has one byte for each element, and `scales` has one fp32 value for each block. Both functions use the same codes as
// an update on the CPU.
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);

// The same functions by LibTorch's operators. The functions above call them for devices without kernels.
namespace aten {
void pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add);
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate);
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);
}  // namespace aten

}  // namespace zeroshard::math

#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

// Arithmetic on flat 1-D tensors on any device. The CPU and devices with kernels (device_kernels.h) use zeroshard's
// one-pass kernels. Other devices use LibTorch's operators. CPU ranges are split among at::get_num_threads() threads at
// fixed boundaries, so the results do not depend on the number of threads.
namespace zeroshard::math {

// A dense tensor and its place in a flat tensor, where its elements begin at `begin`.
struct Packed {
  at::Tensor in;
  int64_t begin = 0;
};
// Writes round(in * scale) to the elements of `out` from packed.begin on, or with `add` round(out + in * scale).
void pack(const Packed& packed, const at::Tensor& out, float scale, bool add = false);

// Returns whether pack_all() may pack `in` together with others. It may if the device has kernels of its own for these
// dtypes, because one launch can then pack many gradients.
bool packs_together(const at::Tensor& in, const at::Tensor& out);
// Packs all tensors in a few launches. All tensors are on one device, and all inputs have one dtype.
void pack_all(std::span<const Packed> all, const at::Tensor& out, float scale);

// Computes out = round((pieces[0] + pieces[1] + ...) * scale), in fp32 and in a fixed order (kernels::sum_in_order).
// With `accumulate`, the result is added to `out`. Each piece has out.numel() elements of `type`. If `squares` is given
// (only on the CPU), the squares of the result are also added to it, like add_sum_of_squares(), while the result is in
// the cache.
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate, ExactSum* squares = nullptr);

// Adds the squares of `flat` to `sum`. Each piece of 2^15 elements is summed to 70 bits or more
// (kernels::sum_of_squares), and the pieces are added exactly. The sum, rounded to a double, does not depend on how
// elements are cut into tensors, except once in millions of times. On a device the function calls sum_of_squares() of
// device/device_squares.h.
void add_sum_of_squares(const at::Tensor& flat, ExactSum& sum);

// Decode and encode moments in blocks of kScaledNumel elements; the last block may be incomplete. `codes` has one byte
// for each element, and `scales` one fp32 value for each block. The codes are the same as after an update on the CPU.
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);

// LibTorch's operators do the same here. The functions above call these for devices without kernels.
namespace aten {
void pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add);
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate);
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);
}  // namespace aten

}  // namespace zeroshard::math

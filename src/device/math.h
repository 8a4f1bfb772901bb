#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

// Arithmetic on flat 1-D tensors on any device. It uses zeroshard's one-pass kernels on the CPU and on devices with
// kernels (device_kernels.h), and LibTorch's operators on other devices. CPU ranges are split among
// at::get_num_threads() threads at fixed boundaries, so the results do not depend on the number of threads.
namespace zeroshard::math {

// A dense tensor and its place in a flat tensor: its elements begin at `begin` there.
struct Packed {
  at::Tensor in;
  int64_t begin = 0;
};
// out = round(in * scale), or with `add` out = round(out + in * scale), in out's elements from `begin` on.
void pack(const Packed& packed, const at::Tensor& out, float scale, bool add = false);

// Returns whether pack_all() takes this gradient. It does so on a device with its own kernels, because it saves
// launches there.
bool packs_together(const at::Tensor& in, const at::Tensor& out);
// Packs all tensors in a few launches. All tensors are on one device, and all inputs have one dtype.
void pack_all(std::span<const Packed> all, const at::Tensor& out, float scale);

// out = round((pieces[0] + pieces[1] + ...) * scale), in fp32 and in this order; with `accumulate`, the result is added
// to out. Each piece has out.numel() elements of `type`. If `squares` is given (only on the CPU), the squares of the
// result are also added to it, like add_sum_of_squares(), while the result is in the cache.
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate, ExactSum* squares = nullptr);

// Adds the squares of `flat` to `sum`. Each piece of 2^15 elements is summed to 70 bits or more
// (kernels::sum_of_squares), and the pieces are added exactly. Rounded to a double, the sum does not depend on how
// elements are cut into tensors, except once in millions of times. On a device it calls sum_of_squares() of
// device/device_squares.h.
void add_sum_of_squares(const at::Tensor& flat, ExactSum& sum);

// Decode and encode moments in blocks of kScaledNumel elements, the last of which may be incomplete. `codes` have one
// byte for each element, and `scales` one fp32 value for each block. The codes are those of the CPU's updates.
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);

// The same with LibTorch's operators. The functions above call these for devices without kernels.
namespace aten {
void pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add);
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate);
void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to);
void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed);
}  // namespace aten

}  // namespace zeroshard::math

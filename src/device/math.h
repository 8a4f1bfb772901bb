#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "device/exact_sum.h"

// Arithmetic over flat 1-D tensors on any device: our one-pass kernels on the CPU and where a device has its own
// (device_kernels.h), LibTorch's operations elsewhere. CPU ranges are
// split among at::get_num_threads() threads on fixed boundaries; the results do not depend on their number.
namespace zeroshard::math {

// A dense tensor on its way into a flat one, where its elements begin at `begin`.
struct Packed {
  at::Tensor in;
  int64_t begin = 0;
};
// out = round(in * scale), or out = round(out + in * scale) with `add`, in out's elements from `begin` on.
void pack(const Packed& packed, const at::Tensor& out, float scale, bool add = false);

// Whether pack_all() takes this gradient: on a device with kernels of its own. Then it saves launches.
bool packs_together(const at::Tensor& in, const at::Tensor& out);
// All of them, in a few launches. All tensors are of one device, and all that go into `out` have one dtype.
void pack_all(std::span<const Packed> all, const at::Tensor& out, float scale);

// out = round((pieces[0] + pieces[1] + ...) * scale), in fp32, in this order; with `accumulate` added to out. Each
// piece has out.numel() elements of `type`. Also adds the squares of the result to `squares`, if given, like
// add_sum_of_squares, while the result is in the cache; on the CPU only.
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate, ExactSum* squares = nullptr);

// Adds the squares of `flat` to `sum`: pieces of 2^15 elements to 70 bits and more (kernels::sum_of_squares), and the
// pieces exactly. Rounded to a double, the sum does not depend on how elements are cut into tensors, except once in
// millions of times. On other devices than the CPU: sum_of_squares() of device/device_squares.h.
void add_sum_of_squares(const at::Tensor& flat, ExactSum& sum);

// The same with LibTorch's operations. The functions above call these for devices that our kernels do not support.
namespace aten {
void pack(const at::Tensor& in, const at::Tensor& out, float scale, bool add);
void sum_in_order(std::span<const void* const> pieces, at::ScalarType type, float scale, const at::Tensor& out,
                  bool accumulate);
}  // namespace aten

}  // namespace zeroshard::math

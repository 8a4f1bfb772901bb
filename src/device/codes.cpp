#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "base/align.h"
#include "base/check.h"
#include "device/device_kernels.h"
#include "device/math.h"
#include "device/parallel_for.h"
#include "kernels/kernels.h"
#include "layout/shard_layout.h"

namespace zeroshard::math {
namespace {

kernels::CodedValues values_of(const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  return {codes.data_ptr(), scales.data_ptr<float>(), is_signed};
}

// Returns the value of each code, for a block whose scale is 1.
at::Tensor value_of_codes(bool is_signed) {
  std::vector<uint8_t> codes(size_t{kScaledNumel});
  for (size_t code = 0; code < codes.size(); ++code) codes[code] = uint8_t(code);
  std::vector<float> values(codes.size());
  kernels::scalar_table()->decode(codes.data(), 1, is_signed, values.data());
  return at::tensor(values);
}

// For each code above that of the value 0, returns the least magnitude that gets this code, for a block whose scale is
// 1. Finds all these magnitudes together in 32 steps of a bisection. The bisection treats the bits of a float as an
// integer, which grows with the magnitude.
at::Tensor least_magnitudes(bool is_signed) {
  const int first = is_signed ? 127 : 0, count = 255 - first;
  std::vector<uint32_t> below(size_t(count), 0), least(size_t(count), std::bit_cast<uint32_t>(1.0f));
  float probes[kScaledNumel] = {};
  uint8_t codes[kScaledNumel];
  for (int bit = 0; bit < 32; ++bit) {
    for (size_t i = 0; i < least.size(); ++i) probes[i] = std::bit_cast<float>((below[i] + least[i]) / 2);
    kernels::scalar_table()->encode(probes, 1, is_signed, codes);
    for (size_t i = 0; i < least.size(); ++i) {
      if (codes[i] > first + int(i)) {
        least[i] = std::bit_cast<uint32_t>(probes[i]);
      } else {
        below[i] = std::bit_cast<uint32_t>(probes[i]);
      }
    }
  }
  std::vector<float> magnitudes;
  for (const uint32_t bits : least) magnitudes.push_back(std::bit_cast<float>(bits));
  return at::tensor(magnitudes);
}

// The values of all codes, and the magnitudes of least_magnitudes(); see Note [The dynamic map] in codes_impl.h. These
// two tables stay on the host, because starting to copy so few bytes to a device does not make the host wait.
struct Map {
  at::Tensor values, least;
};
const Map& map_of(bool is_signed) {
  static const Map with_sign{value_of_codes(true), least_magnitudes(true)};
  static const Map without_sign{value_of_codes(false), least_magnitudes(false)};
  return is_signed ? with_sign : without_sign;
}

// Returns the flat tensor as rows of one block each, padded with zeros.
at::Tensor rows(const at::Tensor& flat) {
  const int64_t rest = align_up(flat.numel(), kScaledNumel) - flat.numel();
  return (rest > 0 ? at::constant_pad_nd(flat, {0, rest}) : flat).view({-1, kScaledNumel});
}

// Calls body(begin, end) for ranges of elements, which are spread over the threads. Each range consists of whole
// blocks, but the last block of all can be incomplete.
template <typename Body>
void for_block_ranges(int64_t numel, const Body& body) {
  constexpr int64_t kGrainBlocks = 256;
  parallel_for(0, ceil_div(numel, kScaledNumel), kGrainBlocks,
               [&](int64_t first, int64_t last) { body(first * kScaledNumel, std::min(numel, last * kScaledNumel)); });
}

}  // namespace

void aten::decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to) {
  const at::Tensor values = map_of(is_signed).values.to(codes.device(), /*non_blocking=*/true);
  const at::Tensor decoded = rows(at::index_select(values, 0, codes.to(at::kInt))).mul(scales.unsqueeze(1));
  to.copy_(decoded.view({-1}).slice(0, 0, codes.numel()));
}

void aten::encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  const at::Tensor blocks = rows(values);
  at::Tensor most = at::maximum(blocks.amax({1}), blocks.amin({1}).neg());
  most = most.abs_().clamp_max(std::numeric_limits<float>::max());  // abs_() makes 0 of -0.0
  scales.copy_(most);
  // Multiplies by two factors, as the kernels do (factors_of()), because the reciprocal of a subnormal scale could be
  // infinite.
  const at::Tensor one = at::full_like(most, 1);
  const at::Tensor first = at::where(most.lt(0x1p-60), one * 0x1p90, at::where(most.gt(0x1p60), one * 0x1p-40, one));
  const at::Tensor second = at::where(most.gt(0), one.div(most.mul(first)), at::full_like(most, 0));
  const at::Tensor magnitudes = blocks.mul(first.unsqueeze(1)).mul_(second.unsqueeze(1)).abs_();
  const at::Tensor least = map_of(is_signed).least.to(codes.device(), /*non_blocking=*/true);
  at::Tensor code = at::bucketize(magnitudes, least, /*out_int32=*/true, /*right=*/true);
  // The signed map has the value 1, but not -1. So -1 gets the code of the value nearest to it.
  if (is_signed) code = at::where(blocks.lt(0), code.neg().add_(127).add_(code.ge(128)), code.add(127));
  codes.copy_(code.view({-1}).slice(0, 0, values.numel()));
}

void decode(const at::Tensor& codes, const at::Tensor& scales, bool is_signed, const at::Tensor& to) {
  if (codes.is_cpu()) {
    return for_block_ranges(codes.numel(), [&](int64_t begin, int64_t end) {
      kernels::decode(values_of(codes, scales, is_signed), begin, end, to.data_ptr<float>() + begin);
    });
  }
  const DeviceKernels* const own = device_kernels(codes.device().type());
  if (own == nullptr || own->decode == nullptr) return aten::decode(codes, scales, is_signed, to);
  const c10::OptionalDeviceGuard guard(codes.device());
  own->decode(values_of(codes, scales, is_signed), codes.numel(), to.data_ptr<float>());
}

void encode(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  if (codes.is_cpu()) {
    return for_block_ranges(codes.numel(), [&](int64_t begin, int64_t end) {
      const kernels::CodedValues all = values_of(codes, scales, is_signed);
      kernels::encode(values.const_data_ptr<float>() + begin, end - begin,
                      {static_cast<uint8_t*>(all.codes) + begin, all.scales + begin / kScaledNumel, is_signed});
    });
  }
  const DeviceKernels* const own = device_kernels(codes.device().type());
  if (own == nullptr || own->encode == nullptr) return aten::encode(values, codes, scales, is_signed);
  const c10::OptionalDeviceGuard guard(codes.device());
  own->encode(values.const_data_ptr<float>(), values.numel(), values_of(codes, scales, is_signed));
}

}  // namespace zeroshard::math

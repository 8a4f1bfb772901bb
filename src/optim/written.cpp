#include "optim/written.h"

#include <ATen/ops/where.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "device/device_kernels.h"
#include "device/dtype.h"
#include "kernels/kernels.h"

namespace zeroshard {
namespace {

constexpr int64_t kComparedPiece = 2048;

using Rounded = std::array<uint16_t, kComparedPiece>;

// Fills `rounded` with the rounded master weights. Returns whether the parameters are equal to them.
bool is_same(const float* master, const uint16_t* param, DType dtype, int64_t numel, Rounded& rounded) {
  kernels::pack(master, DType::kFloat32, rounded.data(), dtype, 1, numel);
  return std::memcmp(rounded.data(), param, size_t(numel) * sizeof(uint16_t)) == 0;
}

void take_piece(float* master, const uint16_t* param, DType dtype, int64_t numel) {
  alignas(64) Rounded rounded;
  if (is_same(master, param, dtype, numel, rounded)) return;
  alignas(64) std::array<float, kComparedPiece> written;
  kernels::pack(param, dtype, written.data(), DType::kFloat32, 1, numel);
  for (size_t i = 0; i < size_t(numel); ++i)
    if (rounded[i] != param[i]) master[i] = written[i];
}

}  // namespace

void take_written(const at::Tensor& master, const at::Tensor& param) {
  const DType dtype = to_dtype(param.scalar_type());
  if (!param.is_cpu()) {
    if (const DeviceKernels* const own = device_kernels(param.device().type()); own && own->take_written) {
      const c10::OptionalDeviceGuard guard(param.device());
      return own->take_written(master.data_ptr<float>(), param.const_data_ptr(), dtype, param.numel());
    }
    const at::Tensor same = master.to(param.scalar_type()).view(at::kShort).eq(param.view(at::kShort));
    master.copy_(at::where(same, master, param.to(at::kFloat)));
    return;
  }
  auto* const to = master.data_ptr<float>();
  const auto* const from = static_cast<const uint16_t*>(param.const_data_ptr());
  for (int64_t at = 0; at < param.numel(); at += kComparedPiece)
    take_piece(to + at, from + at, dtype, std::min(kComparedPiece, param.numel() - at));
}

bool is_written(const at::Tensor& master, const at::Tensor& param) {
  const auto* const own = master.const_data_ptr<float>();
  const auto* const from = static_cast<const uint16_t*>(param.const_data_ptr());
  const DType dtype = to_dtype(param.scalar_type());
  alignas(64) Rounded rounded;
  for (int64_t at = 0; at < param.numel(); at += kComparedPiece)
    if (!is_same(own + at, from + at, dtype, std::min(kComparedPiece, param.numel() - at), rounded)) return true;
  return false;
}

}  // namespace zeroshard

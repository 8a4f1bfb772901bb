#include "group/parameter_checksum.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "device/device_kernels.h"

namespace zeroshard {

bool ParameterChecksum::can_be_on(at::Device device) {
  const DeviceKernels* const own = device_kernels(device.type());
  return own && own->add_checksum;
}

ParameterChecksum::ParameterChecksum(at::Device device)
    : sums_(at::zeros({2}, at::TensorOptions(device).dtype(at::kLong))) {}

void ParameterChecksum::remember(const at::Tensor& params) {
  sum(params, 0);
  has_sum_ = true;
}

bool ParameterChecksum::is_of(const at::Tensor& params) {
  if (!has_sum_) return false;
  sum(params, 1);
  const at::Tensor sums = sums_.cpu();
  const int64_t* const both = sums.const_data_ptr<int64_t>();
  return both[0] == both[1];
}

void ParameterChecksum::sum(const at::Tensor& params, int index) {
  const c10::OptionalDeviceGuard guard(params.device());
  const at::Tensor sum = sums_.slice(0, index, index + 1).zero_();
  device_kernels(params.device().type())
      ->add_checksum(params.const_data_ptr(), int64_t(params.nbytes()), sum.data_ptr<int64_t>());
}

}  // namespace zeroshard

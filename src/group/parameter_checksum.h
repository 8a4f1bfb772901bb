#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Detects by checksums whether parameters on a device still have the bits that they had when remember() was called. The
// device computes the checksums, so only two numbers are copied to the host. The two checksums take 16 bytes of device
// memory, which plans of memory do not count. This class does not know whether the parameters were equal to the rounded
// master weights when remember() was called. The owner must ensure that they were (see
// ShardedGroup::forget_parameters()).
class ParameterChecksum {
 public:
  // Returns whether zeroshard has a checksum kernel for the device.
  static bool can_be_on(at::Device device);
  explicit ParameterChecksum(at::Device device);

  // Remembers the bits that `params` will have when the current stream has done its present work.
  void remember(const at::Tensor& params);
  void forget() { has_sum_ = false; }
  bool is_known() const { return has_sum_; }
  // Returns whether `params` still have the remembered bits when the current stream has done its present work. If
  // nothing is remembered, returns false. Otherwise the host waits for the stream.
  bool is_of(const at::Tensor& params);

 private:
  void sum(const at::Tensor& params, int index);

  at::Tensor sums_;  // the remembered checksum and the latest one
  bool has_sum_ = false;
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Whether parameters on a device have the bits that they had when they were remembered: by a checksum that the device
// computes, so that nothing but two numbers is copied. 16 bytes of the device's memory, which no plan counts. What else
// was true of them then, that their master weights round to them, is for the owner to know: see
// ShardedGroup::forget_parameters().
class ParameterChecksum {
 public:
  // Whether there is a kernel for it.
  static bool can_be_on(at::Device device);
  explicit ParameterChecksum(at::Device device);

  // What `params` are once the current stream has done what it was given.
  void remember(const at::Tensor& params);
  void forget() { has_sum_ = false; }
  bool is_known() const { return has_sum_; }
  // Whether they are that still, after what the current stream was given. False if nothing is remembered. The host
  // waits for the stream.
  bool is_of(const at::Tensor& params);

 private:
  void sum(const at::Tensor& params, int index);

  at::Tensor sums_;  // the one that is remembered, and the last one
  bool has_sum_ = false;
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

namespace zeroshard {

// Adds up losses, in fp64 and in their order. Those of a device are sent to the host while it goes on, which then waits
// once, for the last.
class LossSum {
 public:
  // For `most` losses of `device`, one after another on its current stream.
  LossSum(int64_t most, at::Device device);
  void add(const at::Tensor& loss);  // a scalar, fp32
  double total();

 private:
  double sum_ = 0;
  int64_t count_ = 0;              // of losses that are not in the sum yet
  at::Tensor sent_;                // pinned; undefined on the CPU
  std::optional<c10::Event> end_;  // of the last copy
};

}  // namespace zeroshard

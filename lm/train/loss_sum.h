#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

namespace zeroshard {

// Adds up losses in fp64, in the order of add(). On the CPU, add() adds the loss at once. On a device, add() only
// starts to copy the loss to the host, and the device continues to compute. So the host waits only once, in total(),
// for the last loss.
class LossSum {
 public:
  // Prepares for at most `most` losses on `device`, which can be the CPU. Each loss must be computed on the stream of
  // `device` that is current in add(), and this must be the same stream each time, because total() waits only for the
  // last copy.
  LossSum(int64_t most, at::Device device);
  void add(const at::Tensor& loss);  // a scalar, fp32
  double total();

 private:
  double sum_ = 0;
  int64_t count_ = 0;              // number of losses that are not in the sum yet
  at::Tensor sent_;                // losses on the host, in pinned memory; undefined on the CPU
  std::optional<c10::Event> end_;  // end of the last copy
};

}  // namespace zeroshard

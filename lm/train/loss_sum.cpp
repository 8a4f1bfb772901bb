#include "train/loss_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace zeroshard {

LossSum::LossSum(int64_t most, at::Device device) {
  if (device.is_cpu()) return;
  sent_ = at::empty({most}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
  end_.emplace(device.type());
}

void LossSum::add(const at::Tensor& loss) {
  if (!sent_.defined()) {
    sum_ += loss.item<double>();
    return;
  }
  const at::NoGradGuard no_grad;
  sent_.select(0, count_++).copy_(loss, /*non_blocking=*/true);
  end_->record(c10::impl::VirtualGuardImpl(loss.device().type()).getStream(loss.device()));
}

double LossSum::total() {
  if (count_ > 0 && !end_->query()) end_->synchronize();
  for (int64_t i = 0; i < count_; ++i) sum_ += static_cast<double>(sent_.const_data_ptr<float>()[i]);
  count_ = 0;
  return sum_;
}

}  // namespace zeroshard

#include "reduce/own_sum.h"

#include <utility>

#include "device/cut.h"
#include "device/dtype.h"

namespace zeroshard {

at::Tensor OwnSum::values() const {
  return memory_.view(to_scalar_type(dtype_), 0, group_.layout.padded_numel());
}

void OwnSum::add(const math::Packed& grad, float scale, Ledger& ledger) {
  if (!memory_)
    memory_ = FlatBuffer(group_.layout.padded_numel() * element_size(dtype_), device_, ledger, Category::kGradients);
  uses_.take();
  if (!std::exchange(used_, true)) values().zero_();
  math::pack(grad, values(), scale, /*add=*/true);
}

void OwnSum::move_to(const at::Tensor& buffer) {
  if (!used_) return;
  uses_.take();
  math::pack({values()}, buffer, 1, /*add=*/true);
  used_ = false;  // not earlier, because a launch that fails is tried again
}

void OwnSum::drop(size_t index) {
  if (!used_) return;
  uses_.take();
  cut(values(), group_.layout.param(index)).zero_();
}

}  // namespace zeroshard

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "zeroshard/checkpoint.h"

namespace zeroshard {

void set_buffer(const at::Tensor& buffer, const at::Tensor& values) {
  const at::NoGradGuard writes_leaves;
  if (at::has_internal_overlap(buffer) == at::MemOverlap::Yes) return buffer.set_data(values);
  if (!buffer.is_inference()) {
    buffer.copy_(values);
    return;
  }
  // This mode is used only for inference tensors, because in it a device's copy would create and keep tensors to which
  // nobody could write later.
  const c10::InferenceMode writes_inference_tensors;
  buffer.copy_(values);
}

}  // namespace zeroshard

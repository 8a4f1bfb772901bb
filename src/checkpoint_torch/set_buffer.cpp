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
  // The mode is used only for inference tensors. If a copy to a device creates tensors and keeps them for later copies,
  // they would be inference tensors in this mode, and later copies could not write to them.
  const c10::InferenceMode writes_inference_tensors;
  buffer.copy_(values);
}

}  // namespace zeroshard

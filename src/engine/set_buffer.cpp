#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>

#include "zeroshard/checkpoint.h"

namespace zeroshard {

void set_buffer(const at::Tensor& buffer, const at::Tensor& values) {
  const c10::InferenceMode writes_anything;
  if (at::has_internal_overlap(buffer) == at::MemOverlap::Yes)
    buffer.set_data(values);
  else
    buffer.copy_(values);
}

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include "layout/shard_layout.h"

namespace zeroshard {

// Returns a view of the elements `range` of a 1-D tensor, or of the rows `range` of a 2-D tensor.
inline at::Tensor cut(const at::Tensor& tensor, Range range) {
  return tensor.slice(0, range.begin, range.end);
}

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Leaves the memory of a tensor to the process, until it ends: something may write to it yet.
void keep_for_ever(at::Tensor memory) noexcept;

}  // namespace zeroshard

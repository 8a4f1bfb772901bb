#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Keeps the memory of a tensor until the process ends, because a collective might still write to it.
void keep_for_ever(at::Tensor memory) noexcept;

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Never frees the memory of a tensor in this process, because a collective may still write to it.
void keep_for_ever(at::Tensor memory) noexcept;

}  // namespace zeroshard

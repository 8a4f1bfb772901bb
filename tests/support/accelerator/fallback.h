#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include <vector>

#include "support/accelerator/streams.h"

namespace zeroshard::accelerator {

// Any operator: shapes come from the Meta device or from a table, errors at once; the CPU's kernel is enqueued on the
// current stream, over the real memory.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// A CPU tensor over the real memory of a device tensor. It keeps nothing alive: kernels do not, either.
at::Tensor real_tensor(const at::Tensor& tensor);
// All bytes from the first to the last element.
Access access_of(const at::Tensor& tensor, bool writes);

}  // namespace zeroshard::accelerator

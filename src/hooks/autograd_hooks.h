#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <utility>

// The only place that touches torch/csrc/autograd.
namespace zeroshard {

// Calls back each time autograd has accumulated a gradient into a leaf; the gradient is handed over and the leaf's
// .grad is empty again. It hooks the leaf's AccumulateGrad node, as DistributedDataParallel does, so the tensor's own
// hooks stay the user's. The hook is removed when the object goes. `leaf` must require a gradient.
class GradHook {
 public:
  using Callback = std::function<void(const at::Tensor& grad)>;
  GradHook(const at::Tensor& leaf, Callback callback);
  GradHook(GradHook&&) noexcept = default;
  GradHook& operator=(GradHook&&) noexcept = default;
  ~GradHook();

 private:
  // A shared_ptr up to LibTorch 2.12, an intrusive_ptr from 2.13 on. Autograd itself holds the node weakly.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  NodePtr node_;
  uintptr_t key_ = 0;
};

// Calls back when the gradient of `output` is known, which is before the backward of what computed it. `output` must
// require a gradient.
void on_backward(const at::Tensor& output, std::function<void()> callback);

// Whether a backward pass is running on this thread: a forward called now recomputes (activation checkpointing).
bool in_backward();

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

// The library's only place that touches torch/csrc/autograd.
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

  // A cast of the leaf, and back, gives it another node: from now on it has the one with the hook again.
  void renew() const;

 private:
  // A shared_ptr up to LibTorch 2.12, an intrusive_ptr from 2.13 on. Autograd itself holds the node weakly.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  NodePtr node_;
  c10::weak_intrusive_ptr<c10::TensorImpl> leaf_;  // weak: a parameter does not live on that its module has dropped
  uintptr_t key_ = 0;
};

// Calls back when the gradient of a tensor is known, which is before the backward of what computed it.
class BackwardHooks {
 public:
  // `output` must require a gradient. Modules may return a tensor that they were given, or that an inner module
  // returned: of one tensor, what was added last is called first, in the order in which backward passes them.
  void add(const at::Tensor& output, std::function<void()> callback);

  // What was added stays, but what will be added is called after it.
  void forget() { entries_.clear(); }
  // How many tensors are known, of those that are gone at most as many as of those that are not, and a few.
  size_t size() const { return entries_.size(); }

 private:
  static constexpr size_t kFewEntries = 64;
  using Callbacks = std::vector<std::function<void()>>;
  struct Entry {
    // Weak: no graph is kept alive, and the address is not used again.
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    const torch::autograd::Node* node;  // an operation in place gives the tensor another
    std::weak_ptr<Callbacks> callbacks;
  };

  void sweep();

  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  size_t sweep_at_ = kFewEntries;
};

// Whether a backward pass is running on this thread: a forward called now recomputes (activation checkpointing).
bool in_backward();

}  // namespace zeroshard

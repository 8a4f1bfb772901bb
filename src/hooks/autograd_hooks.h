#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

// The only module of the library that uses torch/csrc/autograd.
namespace zeroshard {

// Takes the gradients that autograd accumulates into a leaf. The class hooks the leaf's AccumulateGrad node, as
// DistributedDataParallel does, and leaves the tensor's own hooks to the user. The destructor removes the hook. `leaf`
// must require a gradient.
class GradHook {
 public:
  // `before` is called before a gradient is accumulated. `take` is called with each gradient, which is then removed
  // from the leaf.
  struct Calls {
    std::function<void()> before;
    std::function<void(const at::Tensor& grad)> take;
  };
  GradHook(const at::Tensor& leaf, Calls calls);
  GradHook(GradHook&&) noexcept = default;
  GradHook& operator=(GradHook&&) noexcept = default;
  ~GradHook();

  // Gives the leaf the hooked node back, because casting the leaf to another dtype and back gives it another node.
  void renew() const;

 private:
  // A shared_ptr up to LibTorch 2.12, an intrusive_ptr from 2.13 on. Autograd itself holds the node weakly.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  NodePtr node_;
  // Weak, because a parameter that its module has dropped must not stay alive.
  c10::weak_intrusive_ptr<c10::TensorImpl> leaf_;
  uintptr_t key_ = 0;
  const void* pre_hook_ = nullptr;
};

// Registers a callback within a backward pass. `callback` runs at the end of the pass, unless the pass fails. If
// `callback` throws, the pass fails with that error.
void call_at_end_of_backward(std::function<void()> callback);

// During a backward pass of `loss`, is_of_scaled_loss() returns true on this thread, even inside backward passes that
// functions run within it. The gradient of `loss` first goes through `scale`. Does nothing for a loss that requires no
// gradient.
void mark_scaled_loss(const at::Tensor& loss, std::function<at::Tensor(const at::Tensor& grad)> scale);
bool is_of_scaled_loss();

// Calls a function as soon as the gradient of a tensor is known, before the backward of the function that computed the
// tensor.
class BackwardHooks {
 public:
  // A function that gets the number of the tensor. Numbers are never reused. Addresses are: after a tensor is freed,
  // another tensor may get its address while code still remembers that the first one had a gradient.
  using Callback = std::function<void(int64_t tensor)>;

  // `output` must require a gradient. A module may return a tensor that it was given or that an inner module returned.
  // Hooks of one tensor are therefore called in reverse order of addition, like backward passes through the modules.
  void add(const at::Tensor& output, Callback callback);

  // Returns the number of known tensors. Entries of freed tensors are removed so often that there are never many more
  // of them than entries of living tensors.
  size_t size() const { return entries_.size(); }

 private:
  static constexpr size_t kFewEntries = 64;
  using Callbacks = std::vector<Callback>;
  struct Entry {
    // A weak pointer, so that the entry keeps no graph alive. The address is not reused while the entry exists.
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int64_t number;
    const torch::autograd::Node* node = nullptr;  // an in-place operation gives the tensor another node
    std::weak_ptr<Callbacks> callbacks;
  };

  Entry& entry_of(const at::Tensor& tensor);
  void sweep();

  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  int64_t num_tensors_ = 0;  // number of tensors that ever had an entry
  size_t sweep_at_ = kFewEntries;
};

// During the lifetime of an object, operations of its thread are on plain tensors, even inside a function that
// torch.func transforms.
class WithoutTransforms {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKeySet{c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                                c10::DispatchKey::FuncTorchDynamicLayerBackMode}};
};

// Returns whether a backward pass is running on this thread. A forward that is called now is a recomputation
// (activation checkpointing).
bool in_backward();

}  // namespace zeroshard

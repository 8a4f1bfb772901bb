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

// Hooks into autograd. Only this module and `sequence` use torch/csrc/autograd.
namespace zeroshard {

// Takes the gradients that autograd accumulates into a leaf. The class adds hooks to the leaf's AccumulateGrad node, as
// DistributedDataParallel does, so the user can still set hooks on the tensor itself. The destructor removes the hooks.
// `leaf` must require a gradient.
class GradHook {
 public:
  // `before` is called before a gradient is accumulated. `take` is called with each gradient, which has been removed
  // from the leaf. There is no call of `take` if there is no gradient, or if the leaf has been freed.
  struct Calls {
    std::function<void()> before;
    std::function<void(const at::Tensor& grad)> take;
  };
  GradHook(const at::Tensor& leaf, Calls calls);
  GradHook(GradHook&&) noexcept = default;
  GradHook& operator=(GradHook&&) noexcept = default;
  ~GradHook();

  // Makes the hooked node the AccumulateGrad node of the leaf again. The leaf may have got another node, for example
  // because it was cast to another dtype and back. If the leaf still has the hooked node, or has been freed, does
  // nothing.
  void renew() const;

 private:
  // A shared_ptr up to LibTorch 2.12, an intrusive_ptr from 2.13 on. The leaf itself holds the node only weakly, so
  // this class keeps the node alive.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  NodePtr node_;
  // Weak, because a parameter that its module has dropped must not stay alive.
  c10::weak_intrusive_ptr<c10::TensorImpl> leaf_;
  uintptr_t key_ = 0;
  const void* pre_hook_ = nullptr;
};

// Must be called within a backward pass. `callback` runs at the end of the pass, but not if the pass fails. If
// `callback` throws, the pass fails with that error.
void call_at_end_of_backward(std::function<void()> callback);

// Makes each backward pass of `loss` first replace the gradient of `loss` by scale(gradient). From then until the end
// of this pass, is_of_scaled_loss() returns true on the thread that has called `scale`. It also returns true there in
// backward passes that run inside this pass. Does nothing for a loss that requires no gradient.
void mark_scaled_loss(const at::Tensor& loss, std::function<at::Tensor(const at::Tensor& grad)> scale);
bool is_of_scaled_loss();

// Calls a function as soon as the gradient of a tensor is known, which is before the backward of the function that
// computed the tensor.
class BackwardHooks {
 public:
  // A function that gets the number of the tensor. BackwardHooks numbers the tensors, and never uses a number twice.
  // Callbacks do not get the tensor's address instead, because another tensor can get the address of a freed one while
  // code still remembers that the freed tensor had a gradient.
  using Callback = std::function<void(int64_t tensor)>;

  // `output` must require a gradient. A module can return a tensor that it was given, or that an inner module returned,
  // so this function can be called several times for one tensor. The callbacks of a tensor are called in reverse order
  // of addition, because a backward pass goes through the modules in this order.
  void add(const at::Tensor& output, Callback callback);

  // Returns the number of entries. Each tensor that was hooked has one. The entries of freed tensors stay until the
  // next removal. add() removes them before it adds an entry, if there are at least max(kFewEntries, 2 * n) entries. n
  // is the number of entries that the previous removal left.
  size_t size() const { return entries_.size(); }

 private:
  static constexpr size_t kFewEntries = 64;
  using Callbacks = std::vector<Callback>;
  struct Entry {
    // A weak pointer, so that the entry keeps no graph alive. The tensor's address is not reused while the entry
    // exists, because the weak pointer keeps the memory of the TensorImpl.
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int64_t number;
    // The grad_fn of the tensor when the tensor was hooked. An in-place operation gives the tensor another grad_fn.
    const torch::autograd::Node* node = nullptr;
    std::weak_ptr<Callbacks> callbacks;
  };

  Entry& entry_of(const at::Tensor& tensor);
  void sweep();

  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  int64_t num_tensors_ = 0;  // number of tensors that have ever had an entry
  size_t sweep_at_ = kFewEntries;
};

// While an object lives, torch.func does not transform the operations of the current thread, even inside a function
// that is being transformed.
class WithoutTransforms {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKeySet{c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                                c10::DispatchKey::FuncTorchDynamicLayerBackMode}};
};

// Returns whether a backward pass is running on this thread. A forward that runs meanwhile is a recomputation
// (activation checkpointing).
bool in_backward();

}  // namespace zeroshard

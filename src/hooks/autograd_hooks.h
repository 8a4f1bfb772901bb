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
// DistributedDataParallel does, so the user can still set hooks on the tensor itself. The destructor removes the hook.
// `leaf` must require a gradient.
class GradHook {
 public:
  // `before` is called before a gradient is accumulated. `take` is called with each gradient, which has been removed
  // from the leaf.
  struct Calls {
    std::function<void()> before;
    std::function<void(const at::Tensor& grad)> take;
  };
  GradHook(const at::Tensor& leaf, Calls calls);
  GradHook(GradHook&&) noexcept = default;
  GradHook& operator=(GradHook&&) noexcept = default;
  ~GradHook();

  // Gives the hooked node back to the leaf, because a leaf that was cast to another dtype and back has got another
  // node.
  void renew() const;

 private:
  // A shared_ptr up to LibTorch 2.12, an intrusive_ptr from 2.13 on. Autograd itself holds the node only weakly.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  NodePtr node_;
  // Weak, because a parameter that its module has dropped must not stay alive.
  c10::weak_intrusive_ptr<c10::TensorImpl> leaf_;
  uintptr_t key_ = 0;
  const void* pre_hook_ = nullptr;
};

// Registers `callback` within a backward pass. The callback runs at the end of the pass, but not if the pass fails. If
// the callback throws, the pass fails with that error.
void call_at_end_of_backward(std::function<void()> callback);

// After this call, is_of_scaled_loss() returns true on this thread during a backward pass of `loss`, also during a
// backward pass that a function runs within that pass. The gradient of `loss` first goes through `scale`. Does nothing
// for a loss that requires no gradient.
void mark_scaled_loss(const at::Tensor& loss, std::function<at::Tensor(const at::Tensor& grad)> scale);
bool is_of_scaled_loss();

// Calls a function as soon as the gradient of a tensor is known, which is before the backward of the function that
// computed the tensor.
class BackwardHooks {
 public:
  // A function that gets the number of the tensor. Numbers are used instead of addresses, because they are never
  // reused. If a tensor is freed, another tensor can get its address while code still remembers that the first one had
  // a gradient.
  using Callback = std::function<void(int64_t tensor)>;

  // `output` must require a gradient. A module can return a tensor that it was given, or that an inner module returned.
  // Hooks of one tensor are therefore called in reverse order of addition, as backward passes go through the modules.
  void add(const at::Tensor& output, Callback callback);

  // Returns the number of tensors that have entries. Entries of freed tensors are removed so often that they never
  // outnumber the entries of living tensors by much.
  size_t size() const { return entries_.size(); }

 private:
  static constexpr size_t kFewEntries = 64;
  using Callbacks = std::vector<Callback>;
  struct Entry {
    // A weak pointer, so that the entry keeps no graph alive. The address is not reused while the entry exists.
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int64_t number;
    // The tensor's node when the tensor was hooked. An in-place operation gives it another node.
    const torch::autograd::Node* node = nullptr;
    std::weak_ptr<Callbacks> callbacks;
  };

  Entry& entry_of(const at::Tensor& tensor);
  void sweep();

  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  int64_t num_tensors_ = 0;  // number of tensors that have ever had an entry
  size_t sweep_at_ = kFewEntries;
};

// While an object lives, operations of its thread are on plain tensors, even inside a function that torch.func
// transforms.
class WithoutTransforms {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKeySet{c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                                c10::DispatchKey::FuncTorchDynamicLayerBackMode}};
};

// Returns whether a backward pass is running on this thread. If so, a forward is a recomputation (activation
// checkpointing).
bool in_backward();

}  // namespace zeroshard

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

// Takes the gradients that autograd accumulates into a leaf. It hooks the leaf's AccumulateGrad node, as
// DistributedDataParallel does, so the tensor's own hooks remain the user's. The destructor removes the hook. `leaf`
// must require a gradient.
class GradHook {
 public:
  // `before`: called before a gradient is accumulated. `take`: called with each gradient, which the leaf then has no
  // more.
  struct Calls {
    std::function<void()> before;
    std::function<void(const at::Tensor& grad)> take;
  };
  GradHook(const at::Tensor& leaf, Calls calls);
  GradHook(GradHook&&) noexcept = default;
  GradHook& operator=(GradHook&&) noexcept = default;
  ~GradHook();

  // Casting the leaf to another dtype and back gives it another node: this restores the node with the hook.
  void renew() const;

 private:
  // A shared_ptr up to LibTorch 2.12, an intrusive_ptr from 2.13 on. Autograd itself holds the node weakly.
  using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  NodePtr node_;
  c10::weak_intrusive_ptr<c10::TensorImpl> leaf_;  // weak: a parameter that its module has dropped must not stay alive
  uintptr_t key_ = 0;
  const void* pre_hook_ = nullptr;
};

// Within a backward pass: `callback` is called at its end, unless it fails. An error that it throws is the pass's.
void call_at_end_of_backward(std::function<void()> callback);

// Within a backward pass of `loss`, is_of_scaled_loss() is true on this thread, also where functions run backward
// passes of their own inside. `scale` is what its own gradient goes through first. Does nothing for a loss without a
// gradient.
void mark_scaled_loss(const at::Tensor& loss, std::function<at::Tensor(const at::Tensor& grad)> scale);
bool is_of_scaled_loss();

// Calls back when the gradient of a tensor is known, which is before the backward of the function that computed it.
class BackwardHooks {
 public:
  // Gets the number of the tensor, which no other tensor ever has. (Once a tensor is freed, another one may have its
  // address, while somebody still remembers that the first one had a gradient.)
  using Callback = std::function<void(int64_t tensor)>;

  // `output` must require a gradient. Modules may return a tensor that they were given, or that an inner module
  // returned. Hooks of one tensor are called in reverse order of addition, as backward passes the modules.
  void add(const at::Tensor& output, Callback callback);

  // The number of known tensors. Those that no longer exist are at most as many as those that do, and a few.
  size_t size() const { return entries_.size(); }

 private:
  static constexpr size_t kFewEntries = 64;
  using Callbacks = std::vector<Callback>;
  struct Entry {
    // Weak: keeps no graph alive, but the address is not reused while the entry is there.
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int64_t number;
    const torch::autograd::Node* node = nullptr;  // an operation in place gives the tensor another node
    std::weak_ptr<Callbacks> callbacks;
  };

  Entry& entry_of(const at::Tensor& tensor);
  void sweep();

  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  int64_t num_tensors_ = 0;  // that ever had an entry
  size_t sweep_at_ = kFewEntries;
};

// While it lives, operations of this thread are on plain tensors, even inside a function that torch.func transforms.
class WithoutTransforms {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKeySet{c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                                c10::DispatchKey::FuncTorchDynamicLayerBackMode}};
};

// Whether a backward pass is running on this thread: a forward called now recomputes (activation checkpointing).
bool in_backward();

}  // namespace zeroshard

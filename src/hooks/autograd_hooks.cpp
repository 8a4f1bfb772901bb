#include "hooks/autograd_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>

#include "base/check.h"

namespace zeroshard {

using torch::autograd::variable_list;

namespace {

// Makes a weak pointer from either type that GradHook::NodePtr can be.
template <typename T>
std::weak_ptr<T> weakly(const std::shared_ptr<T>& node) {
  return node;
}
template <typename T, typename Null>
c10::weak_intrusive_ptr<T, Null> weakly(const c10::intrusive_ptr<T, Null>& node) {
  return c10::weak_intrusive_ptr<T, Null>(node);
}

class PreHook : public torch::autograd::FunctionPreHook {
 public:
  explicit PreHook(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& grads) override {
    call_();
    return grads;
  }

 private:
  std::function<void()> call_;
};

}  // namespace

void call_at_end_of_backward(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

namespace {

thread_local std::weak_ptr<void> pass_of_scaled_loss;  // expires at the end of the pass

}  // namespace

void mark_scaled_loss(const at::Tensor& loss, std::function<at::Tensor(const at::Tensor& grad)> scale) {
  if (!loss.requires_grad()) return;
  loss.register_hook([scale = std::move(scale)](const at::Tensor& grad) {
    const auto pass = std::make_shared<char>();
    pass_of_scaled_loss = pass;
    call_at_end_of_backward([pass] {});
    return scale(grad);
  });
}

bool is_of_scaled_loss() {
  return !pass_of_scaled_loss.expired();
}

GradHook::GradHook(const at::Tensor& leaf, Calls calls) : leaf_(leaf.getIntrusivePtr()) {
  node_ = torch::autograd::impl::grad_accumulator(leaf);
  ZS_ASSERT(node_, "only a leaf that requires a gradient has an accumulator");
  auto hook = [weak = leaf_, take = std::move(calls.take)](const variable_list& outputs, const variable_list&) {
    if (auto impl = weak.lock()) {
      const at::Tensor tensor(std::move(impl));
      const at::Tensor grad = std::move(tensor.mutable_grad());
      tensor.mutable_grad().reset();
      if (grad.defined()) take(grad);
    }
    return outputs;
  };
  key_ = node_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(hook)));
  auto before = std::make_unique<PreHook>(std::move(calls.before));
  pre_hook_ = before.get();
  node_->add_pre_hook(std::move(before));
}

GradHook::~GradHook() {
  if (!node_) return;
  node_->del_post_hook(key_);
  std::erase_if(node_->pre_hooks(), [this](const auto& hook) { return hook.get() == pre_hook_; });
}

void GradHook::renew() const {
  const auto impl = leaf_.lock();
  if (!impl || !node_) return;
  const at::Tensor leaf(impl);
  if (torch::autograd::impl::try_get_grad_accumulator(leaf) != node_)
    torch::autograd::impl::set_grad_accumulator(leaf, weakly(node_));
}

BackwardHooks::Entry& BackwardHooks::entry_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  if (const auto found = entries_.find(impl); found != entries_.end()) return found->second;
  if (entries_.size() >= sweep_at_) sweep();
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(tensor.getIntrusivePtr());
  return entries_.emplace(impl, Entry{weak, num_tensors_++, nullptr, {}}).first->second;
}

void BackwardHooks::add(const at::Tensor& output, Callback callback) {
  Entry& entry = entry_of(output);
  // The output of a linear layer can be a view. If the view is then written in place, autograd makes a new node from
  // the view's base, and the node that is hooked below is not used. Therefore the base is hooked, too. If both hooks
  // run, the hook of the base runs later, and sees from `passed` that it must not call `callback` again. A base that
  // other tensors share is not hooked, because it might belong to another unit.
  if (output.is_view() && output._base().grad_fn() && output._base().use_count() == 1) {
    const auto passed = std::make_shared<bool>(false);
    add(at::Tensor(output._base()), [passed, callback, number = entry.number](int64_t) {
      if (!std::exchange(*passed, false)) callback(number);
    });
    callback = [passed, callback = std::move(callback)](int64_t number) {
      *passed = true;
      callback(number);
    };
  }
  const torch::autograd::Node* const node = output.grad_fn().get();
  if (const auto callbacks = entry.callbacks.lock(); callbacks && entry.node == node) {
    callbacks->push_back(std::move(callback));
    return;
  }
  const auto callbacks = std::make_shared<Callbacks>(1, std::move(callback));
  output.register_hook([callbacks, number = entry.number](const at::Tensor& grad) {
    for (auto each = callbacks->rbegin(); each != callbacks->rend(); ++each) (*each)(number);
    return grad;
  });
  entry.node = node;
  entry.callbacks = callbacks;
}

// Removes the entries of freed tensors. Nothing else removes them, and each forward can add new ones.
void BackwardHooks::sweep() {
  std::erase_if(entries_, [](const auto& entry) { return entry.second.tensor.expired(); });
  sweep_at_ = std::max(kFewEntries, 2 * entries_.size());
}

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace zeroshard

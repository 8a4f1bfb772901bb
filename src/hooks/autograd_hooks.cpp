#include "hooks/autograd_hooks.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include "base/check.h"

namespace zeroshard {

using torch::autograd::variable_list;

GradHook::GradHook(const at::Tensor& leaf, Callback callback) {
  node_ = torch::autograd::impl::grad_accumulator(leaf);
  ZS_ASSERT(node_, "only a leaf that requires a gradient has an accumulator");
  // The tensor is held weakly: the hook must not keep a parameter alive that its module has dropped.
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(leaf.getIntrusivePtr());
  auto hook = [weak, callback = std::move(callback)](const variable_list& outputs, const variable_list&) {
    if (auto impl = weak.lock()) {
      const at::Tensor tensor(std::move(impl));
      const at::Tensor grad = std::move(tensor.mutable_grad());
      tensor.mutable_grad().reset();
      if (grad.defined()) callback(grad);
    }
    return outputs;
  };
  key_ = node_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(hook)));
}

GradHook::~GradHook() {
  if (node_) node_->del_post_hook(key_);
}

void on_backward(const at::Tensor& output, std::function<void()> callback) {
  output.register_hook([callback = std::move(callback)](const at::Tensor& grad) {
    callback();
    return grad;
  });
}

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace zeroshard

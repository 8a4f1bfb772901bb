#include "ops/recompute.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace zeroshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keeps the state that a device's default random generator had when this object was made. That is before the first call
// of `forward`. exchange() gives the generator another state and returns the old one.
class RandomState {
 public:
  explicit RandomState(at::Device device)
      : generator_(at::globalContext().defaultGenerator(device)), state_(generator_.get_state().clone()) {}
  at::Tensor exchange(const at::Tensor& state) {
    at::Tensor before = generator_.get_state().clone();
    generator_.set_state(state);
    return before;
  }
  const at::Tensor& state() const { return state_; }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

struct Again final : torch::CustomClassHolder {
  Again(std::function<at::Tensor(const at::Tensor&)> forward_, RandomState random_)
      : forward(std::move(forward_)), random(std::move(random_)) {}
  std::function<at::Tensor(const at::Tensor&)> forward;
  RandomState random;
  std::function<at::Tensor()> input;  // empty: autograd keeps the input
};

struct Recompute final : torch::autograd::Function<Recompute> {
  // `trained` is an input that always requires a gradient, even if `input` does not. Without `trained`, autograd would
  // leave out the backward pass, although parameters inside of `forward` can require gradients.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*trained*/,
                            std::function<at::Tensor(const at::Tensor&)> forward, const KeepInput& keep) {
    const auto again = c10::make_intrusive<Again>(forward, RandomState(input.device()));
    if (keep) again->input = keep(input);
    if (!again->input) context->save_for_backward({input});
    context->saved_data["again"] = c10::IValue::make_capsule(again);
    context->saved_data["differentiable"] = input.requires_grad();
    const at::NoGradGuard no_grad;
    return forward(input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoGradMode with_grad(true);
    const auto holder = context->saved_data["again"].toCapsule();
    auto& again = static_cast<Again&>(*holder);
    const at::Tensor input = input_of(*context, again);
    input.set_requires_grad(context->saved_data["differentiable"].toBool());
    const at::Tensor now = again.random.exchange(again.random.state());
    const at::Tensor output = again.forward(input);
    again.random.exchange(now);
    torch::autograd::backward({output}, {gradients.front()});
    return {input.grad(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

  static at::Tensor input_of(const AutogradContext& context, Again& again) {
    const variable_list saved = context.get_saved_variables();  // throws if the graph has been freed
    if (!again.input) return saved.front().detach();
    at::Tensor input = again.input();
    if (!torch::autograd::get_current_graph_task_keep_graph()) again.input = [] { return at::Tensor(); };
    return input;
  }
};

}  // namespace

at::Tensor recompute(const at::Tensor& input, std::function<at::Tensor(const at::Tensor&)> forward,
                     const KeepInput& keep) {
  if (!at::GradMode::is_enabled()) return forward(input);
  at::Tensor trained = at::empty({0}, input.options().dtype(at::kFloat));
  trained.set_requires_grad(true);
  return Recompute::apply(input, trained, std::move(forward), keep);
}

}  // namespace zeroshard

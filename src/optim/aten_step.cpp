#include "optim/aten_step.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <cmath>

namespace zeroshard {
namespace {

void adam(const at::Tensor& weights, const at::Tensor& grad, const std::vector<at::Tensor>& moments,
          const ParamGroupOptions& o, int64_t step) {
  if (!weights.is_cpu() && o.bias_correction) {
    std::vector<at::Tensor> self{weights}, grads{grad}, exp_avg{moments[0]}, exp_avg_sq{moments[1]}, none;
    std::vector<at::Tensor> steps{at::full({}, double(step), weights.options())};
    if (o.decoupled_weight_decay) {
      at::_fused_adamw_(self, grads, exp_avg, exp_avg_sq, none, steps, o.lr, o.beta1, o.beta2, o.weight_decay, o.eps,
                        /*amsgrad=*/false, o.maximize);
    } else {
      at::_fused_adam_(self, grads, exp_avg, exp_avg_sq, none, steps, o.lr, o.beta1, o.beta2, o.weight_decay, o.eps,
                       /*amsgrad=*/false, o.maximize);
    }
    return;
  }
  at::Tensor g = o.maximize ? grad.neg() : grad;
  if (o.weight_decay != 0 && o.decoupled_weight_decay) weights.mul_(1 - o.lr * o.weight_decay);
  if (o.weight_decay != 0 && !o.decoupled_weight_decay) g = g.add(weights, o.weight_decay);
  moments[0].lerp_(g, 1 - o.beta1);
  moments[1].mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const double correction1 = o.bias_correction ? 1 - std::pow(o.beta1, double(step)) : 1;
  const double correction2 = o.bias_correction ? 1 - std::pow(o.beta2, double(step)) : 1;
  const at::Tensor denominator = moments[1].sqrt().div_(std::sqrt(correction2)).add_(o.eps);
  weights.addcdiv_(moments[0], denominator, -o.lr / correction1);
}

void sgd(const at::Tensor& weights, at::Tensor grad, const std::vector<at::Tensor>& moments, const ParamGroupOptions& o,
         int64_t step) {
  if (o.maximize) grad = grad.neg();
  if (o.weight_decay != 0) grad = grad.add(weights, o.weight_decay);
  if (!moments.empty() && o.momentum != 0) {
    const at::Tensor& buffer = moments[0];
    step == 1 ? buffer.copy_(grad) : buffer.mul_(o.momentum).add_(grad, 1 - o.dampening);
    grad = o.nesterov ? grad.add(buffer, o.momentum) : buffer;
  }
  weights.add_(grad, -o.lr);
}

void lion(const at::Tensor& weights, const at::Tensor& grad, const at::Tensor& exp_avg, const ParamGroupOptions& o) {
  if (o.weight_decay != 0) weights.mul_(1 - o.lr * o.weight_decay);
  const at::Tensor update = exp_avg.mul(o.beta1).add_(grad, 1 - o.beta1).sign_();
  weights.add_(update, -o.lr);
  exp_avg.mul_(o.beta2).add_(grad, 1 - o.beta2);
}

void adagrad(const at::Tensor& weights, at::Tensor grad, const at::Tensor& sum, const ParamGroupOptions& o,
             int64_t step) {
  if (o.maximize) grad = grad.neg();
  if (o.weight_decay != 0) grad = grad.add(weights, o.weight_decay);
  sum.addcmul_(grad, grad, 1);
  weights.addcdiv_(grad, sum.sqrt().add_(o.eps), -o.lr / (1 + double(step - 1) * o.lr_decay));
}

}  // namespace

void aten_step(OptimizerConfig::Type type, const UpdateTensors& tensors, const ParamGroupOptions& options, int64_t step,
               float grad_scale) {
  using Type = OptimizerConfig::Type;
  const at::Tensor& weights = tensors.master.defined() ? tensors.master : tensors.param;
  at::Tensor grad = tensors.grad.to(at::kFloat);
  if (grad_scale != 1) grad = grad.mul(grad_scale);
  switch (type) {
    case Type::kAdam:
    case Type::kAdamW:
      adam(weights, grad, tensors.moments, options, step);
      break;
    case Type::kSgd:
      sgd(weights, grad, tensors.moments, options, step);
      break;
    case Type::kLion:
      lion(weights, grad, tensors.moments[0], options);
      break;
    case Type::kAdagrad:
      adagrad(weights, grad, tensors.moments[0], options, step);
      break;
    case Type::kMuon:
      break;  // with Muon, parameters are updated by AdamW or by apply_matrix_update()
  }
  if (tensors.master.defined()) tensors.param.copy_(tensors.master);
}

}  // namespace zeroshard

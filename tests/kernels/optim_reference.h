#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"

// The optimizers one element at a time: in fp32 with the operations of torch's CPU kernels, which the kernels must
// match bit for bit, and in fp64 from the textbook formulas, which says whether those operations are right at all.
namespace zeroshard::kernels::test {

struct Element {
  float weight, state1 = 0, state2 = 0;
};
struct Element64 {
  double weight, state1 = 0, state2 = 0;
};

inline float f(double value) {
  return static_cast<float>(value);
}

inline void reference(Element& e, float grad, const AdamArgs& a) {
  if (a.maximize) grad = -grad;
  if (a.weight_decay != 0 && a.decoupled_weight_decay) e.weight *= f(1 - a.lr * a.weight_decay);
  if (a.weight_decay != 0 && !a.decoupled_weight_decay) grad = std::fma(e.weight, f(a.weight_decay), grad);
  const float weight = f(1 - a.beta1);
  e.state1 =
      weight < 0.5f ? std::fma(weight, grad - e.state1, e.state1) : std::fma(weight - 1.0f, grad - e.state1, grad);
  e.state2 = std::fma(f(1 - a.beta2) * grad, grad, e.state2 * f(a.beta2));
  const double step = static_cast<double>(a.step);
  const double correction1 = a.bias_correction ? 1 - std::pow(a.beta1, step) : 1;
  const double correction2 = a.bias_correction ? 1 - std::pow(a.beta2, step) : 1;
  const float denominator = std::sqrt(e.state2) / f(std::sqrt(correction2)) + f(a.eps);
  const float change = f(-(a.lr / correction1)) * e.state1 / denominator;
  e.weight = e.weight + change;
}

inline void reference(Element64& e, double grad, const AdamArgs& a) {
  if (a.maximize) grad = -grad;
  if (a.decoupled_weight_decay) {
    e.weight -= a.lr * a.weight_decay * e.weight;
  } else {
    grad += a.weight_decay * e.weight;
  }
  e.state1 = a.beta1 * e.state1 + (1 - a.beta1) * grad;
  e.state2 = a.beta2 * e.state2 + (1 - a.beta2) * grad * grad;
  double mean = e.state1, square = e.state2;
  if (a.bias_correction) {
    mean /= 1 - std::pow(a.beta1, static_cast<double>(a.step));
    square /= 1 - std::pow(a.beta2, static_cast<double>(a.step));
  }
  e.weight -= a.lr * mean / (std::sqrt(square) + a.eps);
}

inline void reference(Element& e, float grad, const SgdArgs& a) {
  if (a.maximize) grad = -grad;
  if (a.weight_decay != 0) grad = std::fma(e.weight, f(a.weight_decay), grad);
  if (a.momentum != 0) {
    e.state1 = a.first_step ? grad : std::fma(grad, f(1 - a.dampening), e.state1 * f(a.momentum));
    grad = a.nesterov ? std::fma(e.state1, f(a.momentum), grad) : e.state1;
  }
  e.weight = std::fma(grad, f(-a.lr), e.weight);
}

inline void reference(Element64& e, double grad, const SgdArgs& a) {
  if (a.maximize) grad = -grad;
  grad += a.weight_decay * e.weight;
  if (a.momentum != 0) {
    e.state1 = a.first_step ? grad : a.momentum * e.state1 + (1 - a.dampening) * grad;
    grad = a.nesterov ? grad + a.momentum * e.state1 : e.state1;
  }
  e.weight -= a.lr * grad;
}

inline void reference(Element& e, float grad, const LionArgs& a) {
  const float direction = std::fma(grad, f(1 - a.beta1), e.state1 * f(a.beta1));
  e.state1 = std::fma(grad, f(1 - a.beta2), e.state1 * f(a.beta2));
  const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
  e.weight = e.weight * f(1 - a.lr * a.weight_decay) - f(a.lr) * sign;
}

inline void reference(Element64& e, double grad, const LionArgs& a) {
  const double direction = a.beta1 * e.state1 + (1 - a.beta1) * grad;
  e.state1 = a.beta2 * e.state1 + (1 - a.beta2) * grad;
  e.weight -= a.lr * ((direction > 0) - (direction < 0)) + a.lr * a.weight_decay * e.weight;
}

inline void reference(Element& e, float grad, const AdagradArgs& a) {
  if (a.maximize) grad = -grad;
  if (a.weight_decay != 0) grad = std::fma(e.weight, f(a.weight_decay), grad);
  e.state1 = std::fma(grad, grad, e.state1);
  const float lr = f(-(a.lr / (1 + static_cast<double>(a.step - 1) * a.lr_decay)));
  e.weight = e.weight + lr * grad / (std::sqrt(e.state1) + f(a.eps));
}

inline void reference(Element64& e, double grad, const AdagradArgs& a) {
  if (a.maximize) grad = -grad;
  grad += a.weight_decay * e.weight;
  e.state1 += grad * grad;
  e.weight -= a.lr / (1 + static_cast<double>(a.step - 1) * a.lr_decay) * grad / (std::sqrt(e.state1) + a.eps);
}

}  // namespace zeroshard::kernels::test

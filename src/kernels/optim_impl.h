#pragma once
#include "kernels/kernels_impl.h"
#include "kernels/rows_impl.h"

// The optimizers, once for any vector type. Orders of operations, and which products are fused into sums, are those
// that torch's CPU kernels use; see tests/kernels/optim_test.cpp for the formulas one element at a time.
namespace zeroshard::kernels {
namespace {

// Param is void when there is no lower-precision copy to write.
template <typename Param, class V, class Where>
inline void store_weights(const Where& where, const StepBuffers& buffers, typename V::F weights) {
  where.template store<float>(buffers.master, weights);
  if constexpr (!std::is_void_v<Param>) where.template store_last<Param>(buffers.param, weights);
}

template <class V, typename Param, class Step>
inline void for_each_weight(const StepBuffers& buffers, const Step& step) {
  if constexpr (std::is_void_v<Param>) {
    for_each_vector<V>(buffers.numel, step);
  } else {
    for_each_vector_streaming<V, Param>(buffers.numel, buffers.param, step);
  }
}

// Divides by one divisor with multiplications, with the bits of a division: a processor's divider takes as long for 16
// elements as its multipliers for some hundred. The product with the reciprocal is off by at most 1.5 units of the last
// place. A correction by the remainder, which fma computes without rounding, leaves less than one unit; a second
// correction, whose remainder is exact, gives the rounded quotient. The reciprocal and the dividend must not lie below
// 2^-100, where the remainder would lose bits (0 may); quotients that are infinite or NaN are kept. Source: P.
// Markstein, "IA-64 and Elementary Functions" (2000), chapter 8.
template <class V>
class Divisor {
 public:
  explicit Divisor(float value) : negative_(V::set(-value)), reciprocal_(V::set(1.0f / value)) {}

  typename V::F divide(typename V::F a) const {
    const auto first = V::mul(a, reciprocal_);
    const auto second = correct(first, a);
    return V::finite_or(correct(second, a), first);
  }

 private:
  typename V::F correct(typename V::F quotient, typename V::F a) const {
    return V::fma(V::fma(quotient, negative_, a), reciprocal_, quotient);
  }

  typename V::F negative_, reciprocal_;
};

template <class V, typename Grad, typename Param>
void adam_kernel(const StepBuffers& buffers, float* exp_avg, float* exp_avg_sq, const AdamConstants& c) {
  const auto grad_scale = V::set(c.grad_scale), decay = V::set(c.decay), l2 = V::set(c.l2);
  const auto beta2 = V::set(c.beta2), beta2_weight = V::set(c.beta2_weight);
  const Divisor<V> bias_correction2_sqrt(c.bias_correction2_sqrt);
  const auto eps = V::set(c.eps);
  const auto negative_step_size = V::set(c.negative_step_size);
  // torch.lerp: from the nearer end, so that a weight of 1 gives the gradient exactly.
  const bool from_exp_avg = c.beta1_weight < 0.5f;
  const auto lerp_weight = V::set(from_exp_avg ? c.beta1_weight : c.beta1_weight - 1.0f);
  const bool decoupled = c.decoupled, coupled = c.coupled;
  const StepBuffers b = buffers;
  for_each_weight<V, Param>(b, [=](auto where) {
    where.template prefetch<float>(b.master);
    where.template prefetch<Grad>(b.grad);
    where.template prefetch<float>(exp_avg);
    where.template prefetch<float>(exp_avg_sq);
    auto weights = where.template load<float>(b.master);
    auto grad = V::mul(where.template load<Grad>(b.grad), grad_scale);
    if (decoupled) weights = V::mul(weights, decay);
    if (coupled) grad = V::fma(weights, l2, grad);

    auto mean = where.template load<float>(exp_avg);
    mean = V::fma(lerp_weight, V::sub(grad, mean), from_exp_avg ? mean : grad);
    auto square = V::mul(where.template load<float>(exp_avg_sq), beta2);
    square = V::fma(V::mul(beta2_weight, grad), grad, square);
    where.template store<float>(exp_avg, mean);
    where.template store<float>(exp_avg_sq, square);

    const auto denominator = V::add(bias_correction2_sqrt.divide(V::sqrt(square)), eps);
    weights = V::add(weights, V::div(V::mul(negative_step_size, mean), denominator));
    store_weights<Param, V>(where, b, weights);
  });
}

template <class V, typename Grad, typename Param>
void sgd_kernel(const StepBuffers& buffers, float* momentum_buffer, const SgdConstants& c) {
  const auto grad_scale = V::set(c.grad_scale), l2 = V::set(c.l2), momentum = V::set(c.momentum);
  const auto grad_weight = V::set(c.grad_weight), negative_lr = V::set(c.negative_lr);
  const bool decay = c.decay, nesterov = c.nesterov, first_step = c.first_step;
  const StepBuffers b = buffers;
  for_each_weight<V, Param>(b, [=](auto where) {
    where.template prefetch<float>(b.master);
    where.template prefetch<Grad>(b.grad);
    auto weights = where.template load<float>(b.master);
    auto grad = V::mul(where.template load<Grad>(b.grad), grad_scale);
    if (decay) grad = V::fma(weights, l2, grad);
    if (momentum_buffer != nullptr) {
      where.template prefetch<float>(momentum_buffer);
      auto velocity = grad;
      if (!first_step) {
        velocity = V::mul(where.template load<float>(momentum_buffer), momentum);
        velocity = V::fma(grad, grad_weight, velocity);
      }
      where.template store<float>(momentum_buffer, velocity);
      grad = nesterov ? V::fma(velocity, momentum, grad) : velocity;
    }
    store_weights<Param, V>(where, b, V::fma(grad, negative_lr, weights));
  });
}

template <class V, typename Grad, typename Param>
void lion_kernel(const StepBuffers& buffers, float* exp_avg, const LionConstants& c) {
  const auto grad_scale = V::set(c.grad_scale), decay = V::set(c.decay), lr = V::set(c.lr);
  const auto beta1 = V::set(c.beta1), beta1_weight = V::set(c.beta1_weight);
  const auto beta2 = V::set(c.beta2), beta2_weight = V::set(c.beta2_weight);
  const StepBuffers b = buffers;
  for_each_weight<V, Param>(b, [=](auto where) {
    where.template prefetch<float>(b.master);
    where.template prefetch<Grad>(b.grad);
    where.template prefetch<float>(exp_avg);
    const auto grad = V::mul(where.template load<Grad>(b.grad), grad_scale);
    const auto mean = where.template load<float>(exp_avg);
    const auto direction = V::fma(grad, beta1_weight, V::mul(mean, beta1));
    where.template store<float>(exp_avg, V::fma(grad, beta2_weight, V::mul(mean, beta2)));
    const auto weights = V::mul(where.template load<float>(b.master), decay);
    store_weights<Param, V>(where, b, V::sub(weights, V::by_sign(lr, direction)));
  });
}

template <class V, typename Grad, typename Param>
void adagrad_kernel(const StepBuffers& buffers, float* sum, const AdagradConstants& c) {
  const auto grad_scale = V::set(c.grad_scale), l2 = V::set(c.l2), eps = V::set(c.eps);
  const auto negative_lr = V::set(c.negative_lr);
  const bool decay = c.decay;
  const StepBuffers b = buffers;
  for_each_weight<V, Param>(b, [=](auto where) {
    where.template prefetch<float>(b.master);
    where.template prefetch<Grad>(b.grad);
    where.template prefetch<float>(sum);
    const auto weights = where.template load<float>(b.master);
    auto grad = V::mul(where.template load<Grad>(b.grad), grad_scale);
    if (decay) grad = V::fma(weights, l2, grad);
    const auto total = V::fma(grad, grad, where.template load<float>(sum));
    where.template store<float>(sum, total);
    const auto denominator = V::add(V::sqrt(total), eps);
    store_weights<Param, V>(where, b, V::add(weights, V::div(V::mul(negative_lr, grad), denominator)));
  });
}

template <class V>
constexpr KernelTable make_table(const char* name) {
  // One row per source dtype, one column per destination dtype.
#define ZS_ROW(kernel, from) \
  { kernel<V, from, float>, kernel<V, from, Bf16>, kernel<V, from, Fp16> }
#define ZS_PAIRS(kernel) \
  { ZS_ROW(kernel, float), ZS_ROW(kernel, Bf16), ZS_ROW(kernel, Fp16) }
#define ZS_STEP_ROW(kernel, from) \
  { kernel<V, from, float>, kernel<V, from, Bf16>, kernel<V, from, Fp16>, kernel<V, from, void> }
#define ZS_STEPS(kernel) \
  { ZS_STEP_ROW(kernel, float), ZS_STEP_ROW(kernel, Bf16), ZS_STEP_ROW(kernel, Fp16) }
  return {
      name,
      ZS_PAIRS(pack_kernel),
      ZS_PAIRS(pack_add_kernel),
      ZS_PAIRS(sum_kernel),
      {sum_of_squares_kernel<V, float>, sum_of_squares_kernel<V, Bf16>, sum_of_squares_kernel<V, Fp16>},
      ZS_STEPS(adam_kernel),
      ZS_STEPS(sgd_kernel),
      ZS_STEPS(lion_kernel),
      ZS_STEPS(adagrad_kernel),
      rms_norm_kernel<V>,
      rms_norm_backward_kernel<V>,
      rotate_kernel<V>,
  };
#undef ZS_ROW
#undef ZS_PAIRS
#undef ZS_STEP_ROW
#undef ZS_STEPS
}

}  // namespace
}  // namespace zeroshard::kernels

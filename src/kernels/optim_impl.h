#pragma once
#include "kernels/codes_impl.h"
#include "kernels/kernels_impl.h"
#include "kernels/rows_impl.h"

// Implements the optimizers once, for any vector type. For Adam, SGD and Adagrad, the order of operations, and the
// choice of products that are fused into sums, are the same as in torch's CPU kernels. tests/kernels/optim_reference.h
// has the formulas for one element.
namespace zeroshard::kernels {
namespace {

// Loads one vector of the fp32 weights. Param is the dtype of the weights' copy `param`, or void if there is no copy.
// If buffers.takes_written is true (only on a device), replaces each weight that does not round to its copy by the
// copy, because the user has written this copy.
template <typename Param, class V, class Where>
ZS_KERNEL inline typename V::F load_weights(const Where& where, const StepBuffers& buffers) {
  auto weights = where.template load<float>(buffers.master);
  if constexpr (V::kOnDevice && !std::is_void_v<Param>)
    if (buffers.takes_written) V::template take_written<Param>(weights, where.template load<Param>(buffers.param));
  return weights;
}

template <typename Param, class V, class Where>
ZS_KERNEL inline void store_weights(const Where& where, const StepBuffers& buffers, typename V::F weights) {
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

// Updates all elements. `make_step(first, second)` makes the step for the addresses of the two moments. For codes,
// these are the addresses to which CodedBlocks decodes each block.
template <class V, typename Param, typename Moment, class MakeStep>
inline void update_all(const StepBuffers& buffers, void* first, void* second, const MakeStep& make_step) {
  if constexpr (std::is_same_v<Moment, Code8>) {
    CodedBlocks<V, Param> blocks(buffers, first, second);
    blocks.for_each(make_step(first ? blocks.first() : nullptr, blocks.second()));
  } else {
    for_each_weight<V, Param>(buffers, make_step(first, second));
  }
}

// Divides by a fixed divisor, using only multiplications and fma, because a processor multiplies many times faster than
// it divides. The result has the same bits as that of a division. The magnitudes of the reciprocal and the dividend
// must not lie below 2^-100, because the remainder would lose bits there. A dividend of 0 is allowed.
//
// The first quotient is the product of the dividend and the reciprocal. It has an error of at most 1.5 units of the
// last place. A correction by its remainder, which fma rounds only once, leaves an error of less than one unit. The
// remainder of this second quotient is exact, so another correction gives the correctly rounded quotient. If that is
// infinite or NaN, the first quotient is the result. Source: P. Markstein, "IA-64 and Elementary Functions" (2000),
// chapter 8.
template <class V>
class Divisor {
 public:
  explicit Divisor(float value) : negative_(V::set(-value)), reciprocal_(V::set(1.0f / value)) {}

  ZS_KERNEL typename V::F divide(typename V::F a) const {
    const auto first = V::mul(a, reciprocal_);
    const auto second = correct(first, a);
    return V::finite_or(correct(second, a), first);
  }

 private:
  ZS_KERNEL typename V::F correct(typename V::F quotient, typename V::F a) const {
    return V::fma(V::fma(quotient, negative_, a), reciprocal_, quotient);
  }

  typename V::F negative_, reciprocal_;
};

// Reads and writes an optimizer's moments. draw() returns the random bits with which the moments of one vector are
// rounded when they are written. It returns an empty struct if moments are not rounded stochastically.
template <class V, typename Moment>
struct Moments {
  explicit Moments(const StepBuffers& /*buffers*/) {}
  struct Draw {};
  template <class Where>
  ZS_KERNEL Draw draw(Where /*where*/) const {
    return {};
  }
  template <class Where>
  ZS_KERNEL typename V::F load(Where where, const void* from) const {
    where.template prefetch<Moment>(from);
    return where.template load<Moment>(from);
  }
  template <class Where>
  ZS_KERNEL void store_first(Where where, void* to, typename V::F value, Draw /*draw*/) const {
    where.template store<Moment>(to, value);
  }
  template <class Where>
  ZS_KERNEL void store_second(Where where, void* to, typename V::F value, Draw /*draw*/) const {
    where.template store<Moment>(to, value);
  }
};

// Moments in bf16, which are rounded stochastically. With rounding to nearest, a second moment that decays by less than
// half a unit of the last place in each step would never shrink. An element's 32 random bits are a mixture of the key
// and the element's number within the parameter. Each of two moments uses 16 of these bits. The mixing function is
// lowbias32 (C. Wellons, "Prospecting for Hash Functions", 2018). The low half of the key is added to the number before
// the mixing. The high half is mixed in between the two multiplications of lowbias32.
template <class V>
struct Moments<V, Bf16> {
  using Draw = typename V::I;
  explicit Moments(const StepBuffers& buffers)
      : numbers_(Draw{} + static_cast<uint32_t>(buffers.random.first_element) +
                 static_cast<uint32_t>(buffers.random.key)),
        high_(static_cast<uint32_t>(buffers.random.key >> 32)) {
    uint32_t lanes[V::kWidth];
    std::memcpy(lanes, &numbers_, sizeof lanes);
    for (int lane = 0; lane < V::kWidth; ++lane) lanes[lane] += static_cast<uint32_t>(lane);
    std::memcpy(&numbers_, lanes, sizeof lanes);
  }
  template <class Where>
  Draw draw(Where where) const {
    Draw bits = numbers_ + static_cast<uint32_t>(where.index);
    bits = (bits ^ (bits >> 16)) * 0x7feb352du;
    bits = (bits ^ (bits >> 15) ^ high_) * 0x846ca68bu;
    return bits ^ (bits >> 16);
  }
  template <class Where>
  typename V::F load(Where where, const void* from) const {
    where.template prefetch<Bf16>(from);
    return where.template load<Bf16>(from);
  }
  template <class Where>
  void store_first(Where where, void* to, typename V::F value, Draw draw) const {
    where.store_at_random(to, value, draw & 0xffffu);
  }
  template <class Where>
  void store_second(Where where, void* to, typename V::F value, Draw draw) const {
    where.store_at_random(to, value, draw >> 16);
  }

 private:
  Draw numbers_;
  uint32_t high_;
};

// Moments in 8-bit codes. CodedBlocks has decoded the block that contains the vector to fp32. `from` and `to` are
// addresses of decoded blocks.
template <class V>
struct Moments<V, Code8> {
  explicit Moments(const StepBuffers& /*buffers*/) {}
  struct Draw {};
  template <class Where>
  Draw draw(Where /*where*/) const {
    return {};
  }
  template <class Where>
  typename V::F load(Where where, const void* from) const {
    return V::template load<float>(static_cast<const float*>(from) + where.index % kScaledNumel);
  }
  template <class Where>
  void store_first(Where where, void* to, typename V::F value, Draw /*draw*/) const {
    V::template store<float>(static_cast<float*>(to) + where.index % kScaledNumel, value);
  }
  template <class Where>
  void store_second(Where where, void* to, typename V::F value, Draw draw) const {
    store_first(where, to, value, draw);
  }
};

// Holds AdamConstants as vectors.
template <class V>
struct AdamFactors {
  explicit AdamFactors(const AdamConstants& c)
      : grad_scale(V::set(c.grad_scale)),
        decay(V::set(c.decay)),
        l2(V::set(c.l2)),
        beta2(V::set(c.beta2)),
        beta2_weight(V::set(c.beta2_weight)),
        bias_correction2_sqrt(c.bias_correction2_sqrt),
        eps(V::set(c.eps)),
        negative_step_size(V::set(c.negative_step_size)),
        // Interpolates like torch.lerp, from the nearer end, so that a weight of 1 gives the gradient exactly.
        lerp_weight(V::set(c.beta1_weight < 0.5f ? c.beta1_weight : c.beta1_weight - 1.0f)) {}

  typename V::F grad_scale, decay, l2, beta2, beta2_weight;
  Divisor<V> bias_correction2_sqrt;
  typename V::F eps, negative_step_size, lerp_weight;
};

template <class V, typename Grad, typename Param, typename Moment>
class AdamStep {
 public:
  AdamStep(const StepBuffers& buffers, void* exp_avg, void* exp_avg_sq, const AdamConstants& c)
      : b_(buffers),
        exp_avg_(exp_avg),
        exp_avg_sq_(exp_avg_sq),
        moments_(buffers),
        c_(c),
        from_exp_avg_(c.beta1_weight < 0.5f),
        decoupled_(c.decoupled),
        coupled_(c.coupled) {}

  template <class Where>
  ZS_KERNEL void operator()(Where where) const {
    const auto weights = load_weights<Param, V>(where, b_);
    const auto [mean, root] = update_moments(where, weights);
    update_weights(where, weights, mean, root);
  }

  // The update in two halves. The first half updates the moments, and returns the root of the second moment, with which
  // the second half updates the weights.
  static constexpr bool kHalves = true;
  template <class Where>
  typename V::F first_half(Where where) const {
    return update_moments(where, coupled_ ? load_weights<Param, V>(where, b_) : V::set(0)).root;
  }
  template <class Where>
  void second_half(Where where, typename V::F root) const {
    update_weights(where, load_weights<Param, V>(where, b_), moments_.load(where, exp_avg_), root);
  }

 private:
  struct Updated {
    typename V::F mean, root;
  };
  template <class Where>
  ZS_KERNEL Updated update_moments(Where where, typename V::F weights) const {
    where.template prefetch<Grad>(b_.grad);
    auto grad = V::mul(where.template load<Grad>(b_.grad), c_.grad_scale);
    if (coupled_) grad = V::fma(weights, c_.l2, grad);

    auto mean = moments_.load(where, exp_avg_);
    mean = V::fma(c_.lerp_weight, V::sub(grad, mean), from_exp_avg_ ? mean : grad);
    auto square = V::mul(moments_.load(where, exp_avg_sq_), c_.beta2);
    square = V::fma(V::mul(c_.beta2_weight, grad), grad, square);
    const auto draw = moments_.draw(where);
    moments_.store_first(where, exp_avg_, mean, draw);
    moments_.store_second(where, exp_avg_sq_, square, draw);
    return {mean, V::sqrt(square)};
  }
  template <class Where>
  ZS_KERNEL void update_weights(Where where, typename V::F weights, typename V::F mean, typename V::F root) const {
    where.template prefetch<float>(b_.master);
    if (decoupled_) weights = V::mul(weights, c_.decay);
    const auto denominator = V::add(c_.bias_correction2_sqrt.divide(root), c_.eps);
    weights = V::add(weights, V::div(V::mul(c_.negative_step_size, mean), denominator));
    store_weights<Param, V>(where, b_, weights);
  }

  StepBuffers b_;
  void *exp_avg_, *exp_avg_sq_;
  Moments<V, Moment> moments_;
  AdamFactors<V> c_;
  bool from_exp_avg_, decoupled_, coupled_;
};

template <class V, typename Grad, typename Param, typename Moment>
void adam_kernel(const StepBuffers& buffers, void* exp_avg, void* exp_avg_sq, const AdamConstants& c) {
  update_all<V, Param, Moment>(buffers, exp_avg, exp_avg_sq, [&](void* first, void* second) {
    return AdamStep<V, Grad, Param, Moment>(buffers, first, second, c);
  });
}

template <class V, typename Grad, typename Param, typename Moment>
class SgdStep {
 public:
  static constexpr bool kHalves = false;
  SgdStep(const StepBuffers& buffers, void* momentum_buffer, const SgdConstants& c)
      : b_(buffers),
        momentum_buffer_(momentum_buffer),
        moments_(buffers),
        grad_scale_(V::set(c.grad_scale)),
        l2_(V::set(c.l2)),
        momentum_(V::set(c.momentum)),
        grad_weight_(V::set(c.grad_weight)),
        negative_lr_(V::set(c.negative_lr)),
        decay_(c.decay),
        nesterov_(c.nesterov),
        first_step_(c.first_step) {}

  template <class Where>
  ZS_KERNEL void operator()(Where where) const {
    where.template prefetch<float>(b_.master);
    where.template prefetch<Grad>(b_.grad);
    auto weights = load_weights<Param, V>(where, b_);
    auto grad = V::mul(where.template load<Grad>(b_.grad), grad_scale_);
    if (decay_) grad = V::fma(weights, l2_, grad);
    if (momentum_buffer_ != nullptr) {
      auto velocity = grad;
      if (!first_step_) {
        velocity = V::mul(moments_.load(where, momentum_buffer_), momentum_);
        velocity = V::fma(grad, grad_weight_, velocity);
      }
      moments_.store_first(where, momentum_buffer_, velocity, moments_.draw(where));
      grad = nesterov_ ? V::fma(velocity, momentum_, grad) : velocity;
    }
    store_weights<Param, V>(where, b_, V::fma(grad, negative_lr_, weights));
  }

 private:
  StepBuffers b_;
  void* momentum_buffer_;
  Moments<V, Moment> moments_;
  typename V::F grad_scale_, l2_, momentum_, grad_weight_, negative_lr_;
  bool decay_, nesterov_, first_step_;
};

template <class V, typename Grad, typename Param, typename Moment>
void sgd_kernel(const StepBuffers& buffers, void* momentum_buffer, const SgdConstants& c) {
  update_all<V, Param, Moment>(buffers, momentum_buffer, nullptr,
                               [&](void* first, void*) { return SgdStep<V, Grad, Param, Moment>(buffers, first, c); });
}

template <class V, typename Grad, typename Param, typename Moment>
class LionStep {
 public:
  static constexpr bool kHalves = false;
  LionStep(const StepBuffers& buffers, void* exp_avg, const LionConstants& c)
      : b_(buffers),
        exp_avg_(exp_avg),
        moments_(buffers),
        grad_scale_(V::set(c.grad_scale)),
        decay_(V::set(c.decay)),
        lr_(V::set(c.lr)),
        beta1_(V::set(c.beta1)),
        beta1_weight_(V::set(c.beta1_weight)),
        beta2_(V::set(c.beta2)),
        beta2_weight_(V::set(c.beta2_weight)) {}

  template <class Where>
  ZS_KERNEL void operator()(Where where) const {
    where.template prefetch<float>(b_.master);
    where.template prefetch<Grad>(b_.grad);
    const auto grad = V::mul(where.template load<Grad>(b_.grad), grad_scale_);
    const auto mean = moments_.load(where, exp_avg_);
    const auto direction = V::fma(grad, beta1_weight_, V::mul(mean, beta1_));
    const auto next = V::fma(grad, beta2_weight_, V::mul(mean, beta2_));
    moments_.store_first(where, exp_avg_, next, moments_.draw(where));
    const auto weights = V::mul(load_weights<Param, V>(where, b_), decay_);
    store_weights<Param, V>(where, b_, V::sub(weights, V::by_sign(lr_, direction)));
  }

 private:
  StepBuffers b_;
  void* exp_avg_;
  Moments<V, Moment> moments_;
  typename V::F grad_scale_, decay_, lr_, beta1_, beta1_weight_, beta2_, beta2_weight_;
};

template <class V, typename Grad, typename Param, typename Moment>
void lion_kernel(const StepBuffers& buffers, void* exp_avg, const LionConstants& c) {
  update_all<V, Param, Moment>(buffers, exp_avg, nullptr,
                               [&](void* first, void*) { return LionStep<V, Grad, Param, Moment>(buffers, first, c); });
}

template <class V, typename Grad, typename Param, typename Moment>
class AdagradStep {
 public:
  static constexpr bool kHalves = false;
  AdagradStep(const StepBuffers& buffers, void* sum, const AdagradConstants& c)
      : b_(buffers),
        sum_(sum),
        moments_(buffers),
        grad_scale_(V::set(c.grad_scale)),
        l2_(V::set(c.l2)),
        eps_(V::set(c.eps)),
        negative_lr_(V::set(c.negative_lr)),
        decay_(c.decay) {}

  template <class Where>
  ZS_KERNEL void operator()(Where where) const {
    where.template prefetch<float>(b_.master);
    where.template prefetch<Grad>(b_.grad);
    const auto weights = load_weights<Param, V>(where, b_);
    auto grad = V::mul(where.template load<Grad>(b_.grad), grad_scale_);
    if (decay_) grad = V::fma(weights, l2_, grad);
    const auto total = V::fma(grad, grad, moments_.load(where, sum_));
    moments_.store_first(where, sum_, total, moments_.draw(where));
    const auto denominator = V::add(V::sqrt(total), eps_);
    store_weights<Param, V>(where, b_, V::add(weights, V::div(V::mul(negative_lr_, grad), denominator)));
  }

 private:
  StepBuffers b_;
  void* sum_;
  Moments<V, Moment> moments_;
  typename V::F grad_scale_, l2_, eps_, negative_lr_;
  bool decay_;
};

template <class V, typename Grad, typename Param, typename Moment>
void adagrad_kernel(const StepBuffers& buffers, void* sum, const AdagradConstants& c) {
  update_all<V, Param, Moment>(buffers, sum, nullptr, [&](void* first, void*) {
    return AdagradStep<V, Grad, Param, Moment>(buffers, first, c);
  });
}

template <class V>
constexpr KernelTable make_table(const char* name) {
  // The macros make one row per source dtype, with one column per destination dtype.
#define ZS_ROW(kernel, from) \
  { kernel<V, from, float>, kernel<V, from, Bf16>, kernel<V, from, Fp16> }
#define ZS_PAIRS(kernel) \
  { ZS_ROW(kernel, float), ZS_ROW(kernel, Bf16), ZS_ROW(kernel, Fp16) }
#define ZS_STEP_ROW(kernel, from, moment)                                                         \
  {                                                                                               \
    kernel<V, from, float, moment>, kernel<V, from, Bf16, moment>, kernel<V, from, Fp16, moment>, \
        kernel<V, from, void, moment>                                                             \
  }
#define ZS_STEPS_WITH(kernel, moment) \
  { ZS_STEP_ROW(kernel, float, moment), ZS_STEP_ROW(kernel, Bf16, moment), ZS_STEP_ROW(kernel, Fp16, moment) }
#define ZS_STEPS(kernel) \
  { ZS_STEPS_WITH(kernel, float), ZS_STEPS_WITH(kernel, Bf16), ZS_STEPS_WITH(kernel, Code8) }
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
      decode_kernel<V>,
      encode_kernel<V>,
      rms_norm_kernel<V>,
      rms_norm_backward_kernel<V>,
      rotate_kernel<V>,
  };
#undef ZS_ROW
#undef ZS_PAIRS
#undef ZS_STEP_ROW
#undef ZS_STEPS_WITH
#undef ZS_STEPS
}

}  // namespace
}  // namespace zeroshard::kernels

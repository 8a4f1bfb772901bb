#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/table.h"
#include "layout/shard_layout.h"

namespace zeroshard::kernels {
namespace {

size_t dtype_index(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0;
    case DType::kBFloat16:
      return 1;
    case DType::kFloat16:
      return 2;
    default:
      throw ValueError(concat("kernels take fp32, bf16 or fp16, got ", name_of(dtype)));
  }
}

void check_numel(int64_t numel) {
  ZS_CHECK(numel >= 0, "numel must not be negative, got ", numel);
}

size_t moment_index(DType dtype) {
  if (dtype == kCodes) return 2;
  ZS_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16, "moments are fp32, bf16 or 8-bit, got ",
           name_of(dtype));
  return dtype_index(dtype);
}

size_t param_index(const StepBuffers& buffers) {
  return buffers.param == nullptr ? size_t{kNoParam} : dtype_index(buffers.param_dtype);
}

// Chooses the kernel of one optimizer for the dtypes of the buffers.
template <typename Kernels>
auto kernel_for(const KernelTable& table, const Kernels& kernels, const StepBuffers& buffers) {
  const size_t moment = moment_index(buffers.moment_dtype);
  const auto kernel = kernels[moment][dtype_index(buffers.grad_dtype)][param_index(buffers)];
  ZS_CHECK(kernel != nullptr, "the kernels of ", table.name, " keep moments in fp32 alone");
  return kernel;
}

void check_step(int64_t step) {
  ZS_CHECK(step >= 1, "step counts from 1, got ", step);
}

float signed_scale(const StepBuffers& buffers, bool maximize) {
  return maximize ? -buffers.grad_scale : buffers.grad_scale;
}

// Constants are computed in fp64 and rounded once, as torch rounds Python's scalars.
AdamConstants constants(const StepBuffers& buffers, const AdamArgs& args) {
  double correction1 = 1, correction2 = 1;
  if (args.bias_correction) {
    correction1 = 1 - std::pow(args.beta1, static_cast<double>(args.step));
    correction2 = 1 - std::pow(args.beta2, static_cast<double>(args.step));
  }
  const bool decays = args.weight_decay != 0;
  return {
      .grad_scale = signed_scale(buffers, args.maximize),
      .decay = static_cast<float>(1 - args.lr * args.weight_decay),
      .l2 = static_cast<float>(args.weight_decay),
      .beta1_weight = static_cast<float>(1 - args.beta1),
      .beta2 = static_cast<float>(args.beta2),
      .beta2_weight = static_cast<float>(1 - args.beta2),
      .bias_correction2_sqrt = static_cast<float>(std::sqrt(correction2)),
      .eps = static_cast<float>(args.eps),
      .negative_step_size = static_cast<float>(-(args.lr / correction1)),
      .decoupled = decays && args.decoupled_weight_decay,
      .coupled = decays && !args.decoupled_weight_decay,
  };
}

SgdConstants constants(const StepBuffers& buffers, const SgdArgs& args) {
  return {
      .grad_scale = signed_scale(buffers, args.maximize),
      .l2 = static_cast<float>(args.weight_decay),
      .momentum = static_cast<float>(args.momentum),
      .grad_weight = static_cast<float>(1 - args.dampening),
      .negative_lr = static_cast<float>(-args.lr),
      .decay = args.weight_decay != 0,
      .nesterov = args.nesterov,
      .first_step = args.first_step,
  };
}

LionConstants constants(const StepBuffers& buffers, const LionArgs& args) {
  return {
      .grad_scale = buffers.grad_scale,
      .decay = static_cast<float>(1 - args.lr * args.weight_decay),
      .beta1 = static_cast<float>(args.beta1),
      .beta1_weight = static_cast<float>(1 - args.beta1),
      .beta2 = static_cast<float>(args.beta2),
      .beta2_weight = static_cast<float>(1 - args.beta2),
      .lr = static_cast<float>(args.lr),
  };
}

AdagradConstants constants(const StepBuffers& buffers, const AdagradArgs& args) {
  return {
      .grad_scale = signed_scale(buffers, args.maximize),
      .l2 = static_cast<float>(args.weight_decay),
      .eps = static_cast<float>(args.eps),
      .negative_lr = static_cast<float>(-(args.lr / (1 + static_cast<double>(args.step - 1) * args.lr_decay))),
      .decay = args.weight_decay != 0,
  };
}

// Encodes a block, and returns its scale. The scale is the largest magnitude of the values, except in one case. Suppose
// that the values were decoded from signed codes with an earlier scale, and that the element which had set the earlier
// scale was negative. The signed map has no value -1, so this element was decoded to a magnitude below the earlier
// scale. With this magnitude as the new scale, the new codes would decode to other values. Only a trial shows whether
// this is the case. If it is, the function computes what the earlier scale would have been, tries the seven floats
// nearest to it, and takes the first with which the new codes decode to the same values again. If there is none, it
// takes the largest magnitude.
float encode_block(const KernelTable& table, const float* values, bool is_signed, uint8_t* codes) {
  float most = 0, lowest = 0;
  for (int64_t i = 0; i < kScaledNumel; ++i) {
    most = std::max(most, std::fabs(values[i]));
    lowest = std::min(lowest, values[i]);
  }
  most = std::min(most, std::numeric_limits<float>::max());
  const auto gives_values = [&](float scale) {
    float decoded[kScaledNumel];
    table.encode(values, scale, is_signed, codes);
    table.decode(codes, scale, is_signed, decoded);
    return std::equal(values, values + kScaledNumel, decoded);
  };
  if (gives_values(most) || !is_signed || -lowest < most) return most;
  constexpr double kLowest = 1 - 0.45 / 64;
  float scale = static_cast<float>(double{most} / kLowest);
  for (int i = 0; i < 3; ++i) scale = std::nextafter(scale, 0.0f);
  for (int i = 0; i < 7; ++i, scale = std::nextafter(scale, std::numeric_limits<float>::infinity()))
    if (gives_values(scale)) return scale;
  table.encode(values, most, is_signed, codes);
  return most;
}

// A bijection of 64 bits that maps neighbouring numbers far apart. It is the output function of splitmix64.
uint64_t mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

}  // namespace

uint64_t random_key(uint64_t parameter, int64_t step) {
  return mix(mix(parameter) + static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15);
}

void pack(const KernelTable& table, const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale,
          int64_t numel) {
  check_numel(numel);
  table.pack[dtype_index(src_dtype)][dtype_index(dst_dtype)](src, dst, scale, numel);
}

void pack_add(const KernelTable& table, const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale,
              int64_t numel) {
  check_numel(numel);
  table.pack_add[dtype_index(src_dtype)][dtype_index(dst_dtype)](src, dst, scale, numel);
}

void sum_in_order(const KernelTable& table, std::span<const void* const> pieces, DType dtype, float scale, void* out,
                  DType out_dtype, bool accumulate, int64_t numel) {
  check_numel(numel);
  ZS_CHECK(!pieces.empty(), "sum_in_order needs at least one piece");
  table.sum_in_order[dtype_index(dtype)][dtype_index(out_dtype)](pieces.data(), static_cast<int>(pieces.size()), scale,
                                                                 out, accumulate, numel);
}

TwofoldSum sum_of_squares(const KernelTable& table, const void* data, DType dtype, int64_t numel) {
  check_numel(numel);
  return table.sum_of_squares[dtype_index(dtype)](data, numel);
}

void adam(const KernelTable& table, const StepBuffers& buffers, void* exp_avg, void* exp_avg_sq, const AdamArgs& args) {
  check_numel(buffers.numel);
  check_step(args.step);
  const auto kernel = kernel_for(table, table.adam, buffers);
  kernel(buffers, exp_avg, exp_avg_sq, constants(buffers, args));
}

void sgd(const KernelTable& table, const StepBuffers& buffers, void* momentum_buffer, const SgdArgs& args) {
  check_numel(buffers.numel);
  ZS_CHECK((args.momentum != 0) == (momentum_buffer != nullptr),
           "sgd takes a momentum buffer exactly when momentum is not 0, got momentum ", args.momentum);
  ZS_CHECK(!args.nesterov || (args.momentum > 0 && args.dampening == 0),
           "nesterov needs a positive momentum and no dampening, got momentum ", args.momentum, ", dampening ",
           args.dampening);
  const auto kernel = kernel_for(table, table.sgd, buffers);
  kernel(buffers, momentum_buffer, constants(buffers, args));
}

void lion(const KernelTable& table, const StepBuffers& buffers, void* exp_avg, const LionArgs& args) {
  check_numel(buffers.numel);
  const auto kernel = kernel_for(table, table.lion, buffers);
  kernel(buffers, exp_avg, constants(buffers, args));
}

void adagrad(const KernelTable& table, const StepBuffers& buffers, void* sum, const AdagradArgs& args) {
  check_numel(buffers.numel);
  check_step(args.step);
  const auto kernel = kernel_for(table, table.adagrad, buffers);
  kernel(buffers, sum, constants(buffers, args));
}

void decode(const KernelTable& table, CodedValues from, int64_t begin, int64_t end, float* to) {
  uint8_t codes[kScaledNumel] = {};
  float values[kScaledNumel];
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / kScaledNumel, first = at % kScaledNumel;
    const int64_t count = std::min(kScaledNumel - first, end - at);
    std::memcpy(codes + first, static_cast<const uint8_t*>(from.codes) + at, size_t(count));
    table.decode(codes, from.scales[block], from.is_signed, values);
    // Before the first update, codes and scales are 0, which decodes to -0 in the signed map. Adding 0 turns this into
    // 0.
    std::transform(values + first, values + first + count, to + (at - begin), [](float value) { return value + 0.0f; });
    at += count;
  }
}

void encode(const KernelTable& table, const float* values, int64_t numel, CodedValues to) {
  for (int64_t at = 0; at < numel; at += kScaledNumel) {
    float block[kScaledNumel] = {};
    uint8_t codes[kScaledNumel];
    const int64_t count = std::min(kScaledNumel, numel - at);
    std::copy_n(values + at, count, block);
    to.scales[at / kScaledNumel] = encode_block(table, block, to.is_signed, codes);
    std::memcpy(static_cast<uint8_t*>(to.codes) + at, codes, size_t(count));
  }
}

void decode(CodedValues from, int64_t begin, int64_t end, float* to) {
  decode(active_table(), from, begin, end, to);
}

void encode(const float* values, int64_t numel, CodedValues to) {
  encode(active_table(), values, numel, to);
}

void pack(const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale, int64_t numel) {
  pack(active_table(), src, src_dtype, dst, dst_dtype, scale, numel);
}

void pack_add(const void* src, DType src_dtype, void* dst, DType dst_dtype, float scale, int64_t numel) {
  pack_add(active_table(), src, src_dtype, dst, dst_dtype, scale, numel);
}

void sum_in_order(std::span<const void* const> pieces, DType dtype, float scale, void* out, DType out_dtype,
                  bool accumulate, int64_t numel) {
  sum_in_order(active_table(), pieces, dtype, scale, out, out_dtype, accumulate, numel);
}

TwofoldSum sum_of_squares(const void* data, DType dtype, int64_t numel) {
  return sum_of_squares(active_table(), data, dtype, numel);
}

void adam(const StepBuffers& buffers, void* exp_avg, void* exp_avg_sq, const AdamArgs& args) {
  adam(active_table(), buffers, exp_avg, exp_avg_sq, args);
}

void sgd(const StepBuffers& buffers, void* momentum_buffer, const SgdArgs& args) {
  sgd(active_table(), buffers, momentum_buffer, args);
}

void lion(const StepBuffers& buffers, void* exp_avg, const LionArgs& args) {
  lion(active_table(), buffers, exp_avg, args);
}

void adagrad(const StepBuffers& buffers, void* sum, const AdagradArgs& args) {
  adagrad(active_table(), buffers, sum, args);
}

}  // namespace zeroshard::kernels

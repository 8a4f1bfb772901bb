#pragma once
#include "zeroshard/config.h"
#include "zeroshard/dtype.h"

namespace zeroshard {

// Which dtype each part of training has, derived from the configuration once.
struct PrecisionPolicy {
  DType compute;        // parameters and activations
  bool master_weights;  // the optimizer keeps fp32 copies of the parameters
  DType wire;           // gradients while they travel
  DType grad;           // reduced gradients, between reduction and optimizer
};

// Unset dtypes: the wire follows the compute dtype; reduced gradients are fp32 while several micro-batches are summed,
// since 16 bits would lose small contributions, and stay as they came off the wire otherwise.
inline PrecisionPolicy precision_policy(const Config& config) {
  const DType wire = config.communication_dtype.value_or(config.compute_dtype);
  const DType unset_grad = config.grad_accumulation_steps > 1 ? DType::kFloat32 : wire;
  return {config.compute_dtype, config.compute_dtype != DType::kFloat32, wire,
          config.grad_accum_dtype.value_or(unset_grad)};
}

}  // namespace zeroshard

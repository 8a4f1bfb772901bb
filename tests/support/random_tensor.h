#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <span>

#include "support/random.h"

namespace zeroshard::testing {

// Values in [-scale, scale) that depend on the seed alone.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed, float scale = 1) {
  const at::Tensor tensor = at::empty(shape, at::kFloat);
  Random random(seed);
  for (float& value : std::span(tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())))
    value = scale * random.fraction();
  return tensor;
}

}  // namespace zeroshard::testing

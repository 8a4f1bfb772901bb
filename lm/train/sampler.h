#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "zeroshard/generate.h"

namespace zeroshard {

// Chooses tokens by their logits. Equal logits, options and calls give equal tokens.
class Sampler {
 public:
  // Throws ValueError for options outside of their ranges.
  explicit Sampler(const SamplingOptions& options);
  // `logits`: fp32, on the host, [vocabulary].
  int32_t choose(const at::Tensor& logits);

 private:
  SamplingOptions options_;
  at::Generator generator_;
};

}  // namespace zeroshard

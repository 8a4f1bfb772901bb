#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "zeroshard/generate.h"

namespace zeroshard {

// Chooses tokens by their logits. Two samplers that get the same options, and the same logits in the same sequence of
// calls, choose the same tokens.
class Sampler {
 public:
  // Throws ValueError for an option outside of its range.
  explicit Sampler(const SamplingOptions& options);
  // Returns the next token. `logits`: fp32, on the host, [vocabulary].
  int32_t choose(const at::Tensor& logits);

 private:
  SamplingOptions options_;
  at::Generator generator_;
};

}  // namespace zeroshard

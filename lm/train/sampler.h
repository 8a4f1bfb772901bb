#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "zeroshard/generate.h"

namespace zeroshard {

// Chooses tokens by their logits. Two samplers with the same options choose the same tokens if they get the same logits
// in the same order.
class Sampler {
 public:
  // Throws ValueError for an option outside of its range.
  explicit Sampler(const SamplingOptions& options);
  // Returns the next token: with temperature 0 the most likely one, else a random one. `logits`: fp32, on the host,
  // [vocabulary].
  int32_t choose(const at::Tensor& logits);

 private:
  SamplingOptions options_;
  at::Generator generator_;
};

}  // namespace zeroshard

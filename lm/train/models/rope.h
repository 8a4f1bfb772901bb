#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "train/models/fields.h"

namespace zeroshard {

// Rotary position embedding (Su et al. 2021), with the frequencies that a config.json specifies.
class Rope {
 public:
  struct Angles {
    at::Tensor cos, sin;  // [batch, 1, length, head_dim], each half the same
  };

  // Reads rope_parameters, or rope_theta and rope_scaling as written before transformers 5. Supported types: default,
  // linear, llama3.
  Rope(Fields& fields, int64_t head_dim, double default_theta);

  Angles angles(const at::Tensor& positions, at::ScalarType dtype);
  // x: [batch, heads, length, head_dim]
  static at::Tensor rotate(const at::Tensor& x, const Angles& angles);

 private:
  // Fp32, [head_dim / 2]. angles() moves it to the device of its positions, so that all passes share one copy.
  at::Tensor frequencies_;
};

}  // namespace zeroshard

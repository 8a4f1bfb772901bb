#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "train/models/fields.h"

namespace zeroshard {

// Rotary position embedding (Su et al. 2021), with the frequencies that a config.json specifies.
class Rope {
 public:
  struct Angles {
    at::Tensor cos, sin;  // [batch, 1, length, head_dim]; the second half of head_dim equals the first
  };

  // Reads the type of the frequencies from rope_parameters or, if it is not given, from rope_scaling, which
  // transformers wrote before version 5. Reads rope_theta from that object, else from the config itself, else takes
  // `default_theta`. Throws ValueError for types other than default, linear and llama3.
  Rope(Fields& fields, int64_t head_dim, double default_theta);

  // Returns the angles for `positions`, int64, [batch, length], as tensors of `dtype`.
  Angles angles(const at::Tensor& positions, at::ScalarType dtype);
  // Returns x, which is [batch, heads, length, head_dim], rotated by `angles`.
  static at::Tensor rotate(const at::Tensor& x, const Angles& angles);

 private:
  // fp32, [head_dim / 2]. angles() moves the tensor to the device of the positions and keeps it there for later passes.
  at::Tensor frequencies_;
};

}  // namespace zeroshard

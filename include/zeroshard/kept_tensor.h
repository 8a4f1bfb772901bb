#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// The values of a tensor that has left the device's memory until a backward pass needs it. A KeptTensor stays valid
// after the engine is destroyed. Any thread may use and destroy it. Destroying it frees its memory or its space in a
// file.
class KeptTensor {
 public:
  virtual ~KeptTensor() = default;
  // Returns a new tensor with the same values, shape and strides at every call. Throws IoError.
  virtual at::Tensor bring_back() = 0;
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

namespace zeroshard {

// Holds the values of a tensor outside the device's memory until a backward pass needs the tensor. A KeptTensor stays
// valid after the engine is destroyed. Any thread may use and destroy it. Destroying it frees its memory or its space
// in a file.
class KeptTensor {
 public:
  virtual ~KeptTensor() = default;
  // Every call returns a new tensor with the values, shape and strides of the kept tensor. Throws IoError.
  virtual at::Tensor bring_back() = 0;
};

}  // namespace zeroshard

#pragma once
#include <ATen/core/Tensor.h>

#include "zeroshard/dtype.h"

namespace zeroshard {

// Returns the DType of a torch scalar type. Types other than fp32, fp64, bf16 and fp16 become kOther1 to kOther8, by
// size. Types of more than 8 bytes also become kOther8.
inline DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      break;
  }
  switch (c10::elementSize(type)) {
    case 1:
      return DType::kOther1;
    case 2:
      return DType::kOther2;
    case 4:
      return DType::kOther4;
    default:
      return DType::kOther8;
  }
}

// Returns the torch type of `dtype`. kOther1 to kOther8 become integer types of the same size.
inline at::ScalarType to_scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kOther1:
      return at::kByte;
    case DType::kOther2:
      return at::kShort;
    case DType::kOther4:
      return at::kInt;
    case DType::kOther8:
      return at::kLong;
  }
  return at::kByte;
}

}  // namespace zeroshard

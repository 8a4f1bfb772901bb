#include "device/safetensors_dtype.h"

#include "base/check.h"

namespace zeroshard {

std::string safetensors_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "F32";
    case at::kDouble:
      return "F64";
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "F16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      throw ValueError(concat("tensors of type ", c10::toString(type), " cannot be saved"));
  }
}

}  // namespace zeroshard

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
    case at::kUInt16:
      return "U16";
    case at::kUInt32:
      return "U32";
    case at::kUInt64:
      return "U64";
    case at::kComplexFloat:
      return "C64";
    case at::kFloat8_e4m3fn:
      return "F8_E4M3";
    case at::kFloat8_e5m2:
      return "F8_E5M2";
    case at::kFloat8_e4m3fnuz:
      return "F8_E4M3FNUZ";
    case at::kFloat8_e5m2fnuz:
      return "F8_E5M2FNUZ";
    case at::kFloat8_e8m0fnu:
      return "F8_E8M0";
    default:
      throw ValueError(concat("a checkpoint cannot hold tensors of type ", c10::toString(type),
                              ": keep them as uint8 (tensor.view(torch.uint8))"));
  }
}

}  // namespace zeroshard

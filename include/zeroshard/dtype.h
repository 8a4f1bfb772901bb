#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Element types. zeroshard can train only floating-point types. kOther1 to kOther8 are all other types of 1, 2, 4 and 8
// bytes, which zeroshard copies as bytes. Collectives treat kOther8 as int64, and can also do arithmetic with it.
enum class DType : uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16, kOther1, kOther2, kOther4, kOther8 };

// The type of moments that are stored as 8-bit codes, with one fp32 scale per 256 codes.
inline constexpr DType kCodes = DType::kOther1;

constexpr int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kOther1:
      return 1;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kOther2:
      return 2;
    case DType::kFloat32:
    case DType::kOther4:
      return 4;
    case DType::kFloat64:
    case DType::kOther8:
      return 8;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kFloat64:
      return "fp64";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kOther1:
      return "8-bit";
    case DType::kOther2:
      return "16-bit integer";
    case DType::kOther4:
      return "32-bit integer";
    case DType::kOther8:
      return "64-bit integer";
  }
  return "?";
}

constexpr bool is_floating_point(DType dtype) {
  return dtype <= DType::kFloat16;
}

}  // namespace zeroshard

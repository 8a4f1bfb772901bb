#include "checkpoint/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "checkpoint/manifest.h"
#include "kernels/kernels.h"
#include "zeroshard/dtype.h"

namespace zeroshard {
namespace {

// Returns the dtype that safetensors calls `dtype`. Returns nothing if kernels::pack() does not support it.
std::optional<DType> packed_dtype(std::string_view dtype) {
  if (dtype == "F32") return DType::kFloat32;
  if (dtype == "BF16") return DType::kBFloat16;
  if (dtype == "F16") return DType::kFloat16;
  return std::nullopt;
}

bool is_float(std::string_view dtype) {
  return dtype == "F64" || packed_dtype(dtype);
}

// Returns whether a checkpoint before version 0.2 may have named `from` in place of the dtype `to`. Such checkpoints
// named an integer dtype of the same width in place of every dtype for which is_float() is false.
bool is_by_width(std::string_view from, std::string_view to) {
  const bool named_so = from == "U8" || from == "I16" || from == "I32" || from == "I64";
  return named_so && !is_float(to) && dtype_bytes(from) == dtype_bytes(to);
}

// Returns whether no value has all bits of `exponent` set. Only infinities and NaN have them all set.
template <typename Word>
bool none_has(const void* values, int64_t numel, Word exponent) {
  bool none = true;
  for (int64_t i = 0; i < numel; ++i) {
    Word word;
    std::memcpy(&word, static_cast<const char*>(values) + i * int64_t(sizeof word), sizeof word);
    none &= (word & exponent) != exponent;
  }
  return none;
}

}  // namespace

bool all_finite(const void* values, std::string_view dtype, int64_t numel) {
  ZS_CHECK(is_float(dtype), "values of dtype ", dtype, " are no floating-point numbers");
  if (dtype == "F64") return none_has<uint64_t>(values, numel, 0x7ff0'0000'0000'0000U);
  if (dtype == "F32") return none_has<uint32_t>(values, numel, 0x7f80'0000U);
  return none_has<uint16_t>(values, numel, dtype == "BF16" ? 0x7f80U : 0x7c00U);
}

bool convertible(std::string_view from, std::string_view to) {
  return from == to || (is_float(from) && is_float(to)) || is_by_width(from, to);
}

void convert(const void* from, std::string_view from_dtype, void* to, std::string_view to_dtype, int64_t numel) {
  ZS_CHECK(convertible(from_dtype, to_dtype), "values of dtype ", from_dtype, " cannot be loaded as ", to_dtype);
  if (from_dtype == to_dtype || is_by_width(from_dtype, to_dtype)) {
    std::memcpy(to, from, size_t(numel * dtype_bytes(from_dtype)));
    return;
  }
  const auto source = packed_dtype(from_dtype), target = packed_dtype(to_dtype);
  if (source && target) return kernels::pack(from, *source, to, *target, 1, numel);
  // One side is F64 here. The values are rounded to fp32 on the way, because training uses no higher precision.
  std::array<float, 4096> chunk{};
  for (int64_t at = 0; at < numel; at += int64_t(chunk.size())) {
    const int64_t count = std::min(int64_t(chunk.size()), numel - at);
    const auto* const in = static_cast<const char*>(from) + at * dtype_bytes(from_dtype);
    auto* const out = static_cast<char*>(to) + at * dtype_bytes(to_dtype);
    for (int64_t i = 0; i < count && !source; ++i) {
      double value;
      std::memcpy(&value, in + i * int64_t(sizeof value), sizeof value);
      chunk[size_t(i)] = float(value);
    }
    if (!source) {
      kernels::pack(chunk.data(), DType::kFloat32, out, *target, 1, count);
      continue;
    }
    kernels::pack(in, *source, chunk.data(), DType::kFloat32, 1, count);
    for (int64_t i = 0; i < count; ++i) {
      const double value = chunk[size_t(i)];
      std::memcpy(out + i * int64_t(sizeof value), &value, sizeof value);
    }
  }
}

}  // namespace zeroshard

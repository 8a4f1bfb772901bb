#pragma once
#include <cmath>

#include "kernels/codes_impl.h"

// Decodes and encodes one element in one thread of a device, with the same results as codes_impl.h. The tables that
// these functions get are a device's copies of the host's tables.
namespace zeroshard::kernels {
namespace {

// Returns the value of a code in a block whose scale is 1.
ZS_KERNEL inline float decode_element(const DecodeTable& table, uint32_t code, bool is_signed) {
  const uint32_t distance = code - 127u, sign = is_signed ? distance >> 31 : 0u;
  const float x =
      is_signed ? static_cast<float>((((distance ^ (0u - sign)) + sign) << 1) + 1u) : static_cast<float>(code) + 1.5f;
  const uint32_t entry = (bits_of(x) >> 23) % kEntries;
  const float value = fmaf(table.slope[entry], x, table.offset[entry]);
  return float_of(bits_of(value < 1 ? value : 1.0f) | (sign << 31));
}

// Returns the scale of a block whose largest magnitude is `most`. If `most` is infinite, because a moment has
// overflowed, returns the largest float.
ZS_KERNEL inline float scale_of(float most) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return most < kLargest ? most : kLargest;
}

ZS_KERNEL inline uint8_t encode_element(const EncodeTable& table, float value, BlockFactors factors, bool is_signed) {
  const float scaled = fabsf(value * factors.first * factors.second);
  const float magnitude = scaled > kLeast ? scaled : kLeast;
  const uint32_t group = group_of(bits_of(magnitude)) % kEntries;
  const uint32_t entry = (group + (magnitude > table.above[group] ? 1u : 0u)) % kEntries;
  const float place = fmaf(magnitude, table.slope[entry], table.offset[entry]), most = table.most[entry];
  uint32_t code = static_cast<uint32_t>(place < most ? place : most);
  if (is_signed) {
    const uint32_t mask = 0u - (bits_of(value) >> 31);
    code = code + 127u + (mask & ((code >> 7) - (code << 1)));
  }
  return static_cast<uint8_t>(code);
}

}  // namespace
}  // namespace zeroshard::kernels

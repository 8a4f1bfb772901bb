#pragma once
#include <cstdint>
#include <cstring>

#include "zeroshard/dtype.h"

// Defines the 16-bit element types and their scalar conversions, which every instruction set must match. from_float()
// rounds to nearest even, keeps subnormals, and turns every NaN into the same positive quiet NaN.
namespace zeroshard::kernels {
// nvcc compiles this code for a device, too.
#ifdef __CUDACC__
#define ZS_KERNEL __host__ __device__
#else
#define ZS_KERNEL
#endif

// The names have internal linkage, because each *_<isa>.cpp compiles its own copy with its own compiler flags, and the
// linker must not use one file's copy in another.
namespace {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};
static_assert(sizeof(Bf16) == 2 && sizeof(Fp16) == 2);

constexpr uint16_t kBf16NaN = 0x7fc0, kFp16NaN = 0x7e00;
// From this value to its double, neighbouring floats differ by 1. So adding a small integer to this value adds the
// integer to the bits of the float.
constexpr float kRaised = 0x1p23f;

ZS_KERNEL inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
ZS_KERNEL inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

ZS_KERNEL inline float to_float(float value) {
  return value;
}
ZS_KERNEL inline float to_float(Bf16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}
ZS_KERNEL inline float to_float(Fp16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu, mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return float_of(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
  return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

template <typename T>
ZS_KERNEL T from_float(float value);
template <>
ZS_KERNEL inline float from_float<float>(float value) {
  return value;
}
template <>
ZS_KERNEL inline Bf16 from_float<Bf16>(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {kBf16NaN};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
ZS_KERNEL inline Fp16 from_float<Fp16>(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return {kFp16NaN};
  uint32_t half;
  if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// Rounds stochastically to one of the two neighbours in bf16. Rounds away from zero if adding `random` (16 bits)
// carries into the bits of the bf16, so the mean over all random numbers is `value`. A value that bf16 can represent
// does not change. A finite value whose magnitude exceeds the largest finite bf16 gets that magnitude. Every NaN
// becomes kBf16NaN.
ZS_KERNEL inline Bf16 round_at_random(float value, uint32_t random) {
  constexpr uint32_t kLargest = 0x7f7f0000u;  // the largest finite bf16
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {kBf16NaN};
  return {static_cast<uint16_t>((bits + (magnitude < kLargest ? random : 0)) >> 16)};
}

}  // namespace
}  // namespace zeroshard::kernels

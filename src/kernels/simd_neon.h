#pragma once
#include <arm_neon.h>

#include <type_traits>

#include "kernels/simd_padded.h"

namespace zeroshard::kernels {
namespace {

// A vector type of 4 lanes, for AArch64. struct Scalar (simd_scalar.h) has the contract of each member.
struct Neon {
  static constexpr int kWidth = 4, kParts = 2;
  static constexpr bool kOnDevice = false;
  static constexpr bool kStreams = false;
  using F = float32x4_t;
  using D = float64x2_t;
  using I = uint32x4_t;
  using Tails = PaddedTails<Neon, kWidth>;

  static F set(float value) { return vdupq_n_f32(value); }

  template <typename T>
  static F load(const void* from) {
    if constexpr (std::is_same_v<T, float>) {
      return vreinterpretq_f32_u8(vld1q_u8(static_cast<const uint8_t*>(from)));
    } else {
      const uint16x4_t bits = vreinterpret_u16_u8(vld1_u8(static_cast<const uint8_t*>(from)));
      if constexpr (std::is_same_v<T, Bf16>) {
        return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
      } else {
        return vcvt_f32_f16(vreinterpret_f16_u16(bits));
      }
    }
  }
  template <typename T>
  static void store(void* to, F value) {
    if constexpr (std::is_same_v<T, float>) {
      vst1q_u8(static_cast<uint8_t*>(to), vreinterpretq_u8_f32(value));
    } else {
      vst1_u8(static_cast<uint8_t*>(to), vreinterpret_u8_u16(narrow<T>(value)));
    }
  }
  template <typename T>
  static F load(const void* from, int lanes) {
    return Tails::load_tail<T>(from, lanes);
  }
  template <typename T>
  static void store(void* to, F value, int lanes) {
    Tails::store_tail<T>(to, value, lanes);
  }

  static void store_at_random(void* to, F value, I random) {
    vst1_u8(static_cast<uint8_t*>(to), vreinterpret_u8_u16(narrow_at_random(value, random)));
  }
  static void store_at_random(void* to, F value, I random, int lanes) {
    Tails::copy_tail<Bf16>(to, narrow_at_random(value, random), lanes);
  }

  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F sqrt(F a) { return vsqrtq_f32(a); }
  static F by_sign(F a, F selector) {
    const F zero = vdupq_n_f32(0);
    const F positive = vbslq_f32(vcgtq_f32(selector, zero), a, zero);
    return vbslq_f32(vcltq_f32(selector, zero), vsubq_f32(zero, a), positive);
  }
  static F finite_or(F a, F b) { return vbslq_f32(vceqq_f32(vsubq_f32(a, a), vdupq_n_f32(0)), a, b); }

  static F load_codes(const void* from) {
    uint32_t four = 0;
    std::memcpy(&four, from, sizeof four);
    const I codes = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
    return vreinterpretq_f32_u32(vorrq_u32(codes, vreinterpretq_u32_f32(vdupq_n_f32(kRaised))));
  }
  static void store_codes(void* to, const I (&codes)[4]) {
    const auto words = [&](int i) {
      return vcombine_s16(vqmovn_s32(vreinterpretq_s32_u32(codes[i])), vqmovn_s32(vreinterpretq_s32_u32(codes[i + 1])));
    };
    vst1q_u8(static_cast<uint8_t*>(to), vcombine_u8(vqmovun_s16(words(0)), vqmovun_s16(words(2))));
  }
  static I truncate(F value) { return vreinterpretq_u32_s32(vcvtq_s32_f32(value)); }
  static F min(F a, F b) { return vminq_f32(a, b); }
  static F flip_by(F a, F sign) {
    const I flip = vandq_u32(vreinterpretq_u32_f32(sign), vdupq_n_u32(0x80000000u));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), flip));
  }
  static I count_above(F a, F b, I count) { return vsubq_u32(count, vcgtq_f32(a, b)); }
  static I multiply_high(I bits, uint32_t factor) { return ((bits >> 16) * factor) >> 16; }
  using Table = uint8x16x2_t;
  static Table table(const float* entries) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(entries);
    return {{vld1q_u8(bytes), vld1q_u8(bytes + 16)}};
  }
  static F lookup(const Table& table, I number) {
    const I bytes = (number & 7u) * 0x04040404u + 0x03020100u;
    return vreinterpretq_f32_u8(vqtbl2q_u8(table, vreinterpretq_u8_u32(bytes)));
  }

  static D zero() { return vdupq_n_f64(0); }
  static void widen(F value, D* parts) {
    parts[0] = vcvt_f64_f32(vget_low_f32(value));
    parts[1] = vcvt_high_f64_f32(value);
  }
  static D square_plus(D a, D b) { return vfmaq_f64(b, a, a); }
  static F max_abs(F a, F b) { return vmaxnmq_f32(a, vabsq_f32(b)); }
  static void store_doubles(double* to, D value) { vst1q_f64(to, value); }

 private:
  static uint16x4_t narrow_at_random(F value, I random) {
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
    const uint32x4_t may_grow = vcltq_u32(magnitude, vdupq_n_u32(0x7f7f0000));
    const uint32x4_t grown = vaddq_u32(bits, vandq_u32(may_grow, random));
    const uint16x4_t is_number = vmovn_u32(vceqq_f32(value, value));
    return vbsl_u16(is_number, vshrn_n_u32(grown, 16), vdup_n_u16(kBf16NaN));
  }
  template <typename T>
  static uint16x4_t narrow(F value) {
    const uint16x4_t is_number = vmovn_u32(vceqq_f32(value, value));
    if constexpr (std::is_same_v<T, Bf16>) {
      const uint32x4_t bits = vreinterpretq_u32_f32(value);
      const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
      const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
      return vbsl_u16(is_number, vshrn_n_u32(rounded, 16), vdup_n_u16(kBf16NaN));
    } else {
      return vbsl_u16(is_number, vreinterpret_u16_f16(vcvt_f16_f32(value)), vdup_n_u16(kFp16NaN));
    }
  }
};

}  // namespace
}  // namespace zeroshard::kernels

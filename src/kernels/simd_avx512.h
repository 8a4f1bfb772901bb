#pragma once

// GCC 12 warns about its own intrinsics (GCC's bug 105593), because they pass undefined vectors under full masks.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <type_traits>

#include "kernels/half.h"

namespace zeroshard::kernels {
namespace {

// A vector type of 16 lanes. struct Scalar (simd_scalar.h) has the contract of each member. vcvtneps2bf16 is not used,
// because it flushes subnormals.
struct Avx512 {
  static constexpr int kWidth = 16, kParts = 2;
  static constexpr bool kOnDevice = false;
  static constexpr bool kStreams = true;
  using F = __m512;
  using D = __m512d;
  using I = uint32_t __attribute__((vector_size(64)));

  static F set(float value) { return _mm512_set1_ps(value); }

  template <typename T>
  static F load(const void* from) {
    if constexpr (std::is_same_v<T, float>) {
      return _mm512_loadu_ps(from);
    } else {
      return widen<T>(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    }
  }
  template <typename T>
  static F load(const void* from, int lanes) {
    if constexpr (std::is_same_v<T, float>) {
      return _mm512_maskz_loadu_ps(first(lanes), from);
    } else {
      return widen<T>(_mm256_maskz_loadu_epi16(first(lanes), from));
    }
  }
  template <typename T>
  static void store(void* to, F value) {
    if constexpr (std::is_same_v<T, float>) {
      _mm512_storeu_ps(to, value);
    } else {
      _mm256_storeu_si256(static_cast<__m256i*>(to), narrow<T>(value));
    }
  }
  template <typename T>
  static void store(void* to, F value, int lanes) {
    if constexpr (std::is_same_v<T, float>) {
      _mm512_mask_storeu_ps(to, first(lanes), value);
    } else {
      _mm256_mask_storeu_epi16(to, first(lanes), narrow<T>(value));
    }
  }

  static void store_at_random(void* to, F value, I random) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), narrow_at_random(value, random));
  }
  static void store_at_random(void* to, F value, I random, int lanes) {
    _mm256_mask_storeu_epi16(to, first(lanes), narrow_at_random(value, random));
  }

  template <typename T>
  static void stream(void* to, F value) {
    if constexpr (std::is_same_v<T, float>) {
      _mm512_stream_ps(static_cast<float*>(to), value);
    } else {
      _mm256_stream_si256(static_cast<__m256i*>(to), narrow<T>(value));
    }
  }
  static void end_streams() { _mm_sfence(); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static F by_sign(F a, F selector) {
    const F zero = _mm512_setzero_ps();
    const F positive = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(selector, zero, _CMP_GT_OQ), a);
    return _mm512_mask_sub_ps(positive, _mm512_cmp_ps_mask(selector, zero, _CMP_LT_OQ), zero, a);
  }
  static F finite_or(F a, F b) {
    // Takes b where a is of class 0 or 1 (NaN), 4 or 5 (infinite). Takes a in all other lanes.
    const __m512i by_class = _mm512_set1_epi32(0x11001100);
    return _mm512_fixupimm_ps(b, a, by_class, 0);
  }

  static F load_codes(const void* from) {
    const __m512i codes = _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i raised = _mm512_castps_si512(_mm512_set1_ps(kRaised));
    return _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(raised, 0x1111111111111111, codes, lane));
  }
  static void store_codes(void* to, const I (&codes)[4]) {
    const auto words = [&](int i) {
      return _mm512_packs_epi32(reinterpret_cast<__m512i>(codes[i]), reinterpret_cast<__m512i>(codes[i + 1]));
    };
    const __m512i bytes = _mm512_packus_epi16(words(0), words(2));  // four codes of each vector in each 16 bytes
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
  }
  static I truncate(F value) { return reinterpret_cast<I>(_mm512_cvttps_epi32(value)); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F flip_by(F a, F sign) {
    constexpr int kXorOfAnd = 0x78;  // a ^ (sign & mask)
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(a), _mm512_castps_si512(sign), mask, kXorOfAnd));
  }
  static I count_above(F a, F b, I count) {
    const auto before = reinterpret_cast<__m512i>(count);
    const __mmask16 above = _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
    return reinterpret_cast<I>(_mm512_mask_add_epi32(before, above, before, _mm512_set1_epi32(1)));
  }
  static I multiply_high(I bits, uint32_t factor) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(factor << 16));
    return reinterpret_cast<I>(_mm512_srli_epi32(_mm512_mulhi_epu16(reinterpret_cast<__m512i>(bits), high), 16));
  }
  using Table = F;
  static Table table(const float* entries) { return _mm512_broadcast_f32x8(_mm256_load_ps(entries)); }
  static F lookup(Table table, I number) { return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(number), table); }

  static D zero() { return _mm512_setzero_pd(); }
  static void widen(F value, D* parts) {
    parts[0] = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
    parts[1] = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
  }
  static D square_plus(D a, D b) { return _mm512_fmadd_pd(a, a, b); }
  static F max_abs(F a, F b) {
    constexpr int kMaxOfMagnitudes = 0b1011;
    return _mm512_range_ps(a, b, kMaxOfMagnitudes);
  }
  static void store_doubles(double* to, D value) { _mm512_storeu_pd(to, value); }

 private:
  static __mmask16 first(int lanes) { return static_cast<__mmask16>((1u << lanes) - 1u); }

  template <typename T>
  static F widen(__m256i bits) {
    if constexpr (std::is_same_v<T, Bf16>) {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    } else {
      return _mm512_cvtph_ps(bits);
    }
  }
  static __m256i narrow_at_random(F value, I random) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 may_grow = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f7f0000));
    const __m512i grown = _mm512_mask_add_epi32(bits, may_grow, bits, reinterpret_cast<__m512i>(random));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i half = _mm512_mask_mov_epi32(_mm512_srli_epi32(grown, 16), is_nan, _mm512_set1_epi32(kBf16NaN));
    return _mm512_cvtepi32_epi16(half);
  }
  template <typename T>
  static __m256i narrow(F value) {
    if constexpr (std::is_same_v<T, Bf16>) {
      const __m512i nan = _mm512_set1_epi32(kBf16NaN << 16);
      const __m512i bits =
          _mm512_castps_si512(_mm512_fixupimm_ps(_mm512_castsi512_ps(nan), value, _mm512_set1_epi32(0x11111100), 0));
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
      return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
    } else {
      const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
      const __m256i half = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      return _mm256_mask_mov_epi16(half, is_nan, _mm256_set1_epi16(kFp16NaN));
    }
  }
};

}  // namespace
}  // namespace zeroshard::kernels

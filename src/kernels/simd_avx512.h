#pragma once

// GCC 12 warns about its own intrinsics (its bug 105593), because they pass undefined vectors under full masks.
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

// 16 lanes. struct Scalar has the contract of each member. vcvtneps2bf16 is not used, because it flushes subnormals.
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
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(_mm512_sub_ps(a, a), _mm512_setzero_ps(), _CMP_EQ_OQ), a);
  }

  static I load_codes(const void* from) {
    return reinterpret_cast<I>(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from))));
  }
  static void store_codes(void* to, I codes) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(codes)));
  }
  static F from_integer(I value) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(value)); }
  static I truncate(F value) { return reinterpret_cast<I>(_mm512_cvttps_epi32(value)); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static I count_above(F a, F b, I count) {
    const auto before = reinterpret_cast<__m512i>(count);
    const __mmask16 above = _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
    return reinterpret_cast<I>(_mm512_mask_add_epi32(before, above, before, _mm512_set1_epi32(1)));
  }
  using Table = F;
  static Table table(const float* entries) { return _mm512_load_ps(entries); }
  static F lookup(Table table, I entry) { return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(entry), table); }
  static constexpr bool kWideTables = true;
  static F lookup_wide(const float* entries, I entry) {
    return _mm512_permutex2var_ps(_mm512_load_ps(entries), reinterpret_cast<__m512i>(entry),
                                  _mm512_load_ps(entries + kWidth));
  }

  static D zero() { return _mm512_setzero_pd(); }
  static void widen(F value, D* parts) {
    parts[0] = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
    parts[1] = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
  }
  static D square_plus(D a, D b) { return _mm512_fmadd_pd(a, a, b); }
  static F max_abs(F a, F b) { return _mm512_max_ps(a, _mm512_abs_ps(b)); }
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
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    if constexpr (std::is_same_v<T, Bf16>) {
      const __m512i bits = _mm512_castps_si512(value);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
      const __m512i half = _mm512_srli_epi32(rounded, 16);
      return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(half, is_nan, _mm512_set1_epi32(kBf16NaN)));
    } else {
      const __m256i half = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      return _mm256_mask_mov_epi16(half, is_nan, _mm256_set1_epi16(kFp16NaN));
    }
  }
};

}  // namespace
}  // namespace zeroshard::kernels

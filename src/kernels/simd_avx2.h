#pragma once
#include <immintrin.h>

#include <type_traits>

#include "kernels/simd_padded.h"

namespace zeroshard::kernels {
namespace {

// A vector type of 8 lanes. struct Scalar (simd_scalar.h) has the contract of each member.
struct Avx2 {
  static constexpr int kWidth = 8, kParts = 2;
  static constexpr bool kOnDevice = false;
  static constexpr bool kStreams = true;
  using F = __m256;
  using D = __m256d;
  using I = uint32_t __attribute__((vector_size(32)));
  using Tails = PaddedTails<Avx2, kWidth>;

  static F set(float value) { return _mm256_set1_ps(value); }

  template <typename T>
  static F load(const void* from) {
    if constexpr (std::is_same_v<T, float>) {
      return _mm256_loadu_ps(static_cast<const float*>(from));
    } else {
      const __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(from));
      if constexpr (std::is_same_v<T, Bf16>) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
      } else {
        return _mm256_cvtph_ps(bits);
      }
    }
  }
  template <typename T>
  static void store(void* to, F value) {
    if constexpr (std::is_same_v<T, float>) {
      _mm256_storeu_ps(static_cast<float*>(to), value);
    } else {
      _mm_storeu_si128(static_cast<__m128i*>(to), narrow<T>(value));
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
    _mm_storeu_si128(static_cast<__m128i*>(to), narrow_at_random(value, random));
  }
  static void store_at_random(void* to, F value, I random, int lanes) {
    Tails::copy_tail<Bf16>(to, narrow_at_random(value, random), lanes);
  }

  template <typename T>
  static void stream(void* to, F value) {
    if constexpr (std::is_same_v<T, float>) {
      _mm256_stream_ps(static_cast<float*>(to), value);
    } else {
      _mm_stream_si128(static_cast<__m128i*>(to), narrow<T>(value));
    }
  }
  static void end_streams() { _mm_sfence(); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static F by_sign(F a, F selector) {
    const F zero = _mm256_setzero_ps();
    const F positive = _mm256_and_ps(_mm256_cmp_ps(selector, zero, _CMP_GT_OQ), a);
    return _mm256_blendv_ps(positive, _mm256_sub_ps(zero, a), _mm256_cmp_ps(selector, zero, _CMP_LT_OQ));
  }
  static F finite_or(F a, F b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(_mm256_sub_ps(a, a), _mm256_setzero_ps(), _CMP_EQ_OQ));
  }

  static F load_codes(const void* from) {
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from)));
    return _mm256_or_ps(_mm256_castsi256_ps(codes), _mm256_set1_ps(kRaised));
  }
  static void store_codes(void* to, const I (&codes)[4]) {
    const auto words = [&](int i) {
      return _mm256_packs_epi32(reinterpret_cast<__m256i>(codes[i]), reinterpret_cast<__m256i>(codes[i + 1]));
    };
    const __m256i bytes = _mm256_packus_epi16(words(0), words(2));  // four codes of each vector in each 16 bytes
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
  }
  static I truncate(F value) { return reinterpret_cast<I>(_mm256_cvttps_epi32(value)); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F flip_by(F a, F sign) { return _mm256_xor_ps(a, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f))); }
  static I count_above(F a, F b, I count) {
    return count - reinterpret_cast<I>(_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
  }
  static I multiply_high(I bits, uint32_t factor) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(factor << 16));
    return reinterpret_cast<I>(_mm256_srli_epi32(_mm256_mulhi_epu16(reinterpret_cast<__m256i>(bits), high), 16));
  }
  using Table = F;
  static Table table(const float* entries) { return _mm256_load_ps(entries); }
  static F lookup(Table table, I number) { return _mm256_permutevar8x32_ps(table, reinterpret_cast<__m256i>(number)); }

  static D zero() { return _mm256_setzero_pd(); }
  static void widen(F value, D* parts) {
    parts[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
    parts[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
  }
  static D square_plus(D a, D b) { return _mm256_fmadd_pd(a, a, b); }
  static F max_abs(F a, F b) { return _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), b), a); }
  static void store_doubles(double* to, D value) { _mm256_storeu_pd(to, value); }

 private:
  static __m128i narrow_at_random(F value, I random) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i may_grow = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f7f0000), magnitude);
    const __m256i added = _mm256_and_si256(may_grow, reinterpret_cast<__m256i>(random));
    const __m256i half = _mm256_srli_epi32(_mm256_add_epi32(bits, added), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(half, _mm256_set1_epi32(kBf16NaN), is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  }
  template <typename T>
  static __m128i narrow(F value) {
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    if constexpr (std::is_same_v<T, Bf16>) {
      const __m256i bits = _mm256_castps_si256(value);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
      const __m256i half = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_set1_epi32(kBf16NaN), is_nan);
      return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    } else {
      const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      const __m128i nan_lanes = _mm_packs_epi32(_mm256_castsi256_si128(is_nan), _mm256_extracti128_si256(is_nan, 1));
      return _mm_blendv_epi8(half, _mm_set1_epi16(kFp16NaN), nan_lanes);
    }
  }
};

}  // namespace
}  // namespace zeroshard::kernels

#pragma once
#include <cmath>

#include "kernels/half.h"

namespace zeroshard::kernels {
namespace {

// A vector type with one element. It is the reference that the other vector types must match bit for bit. Each vector
// type has three member types: F holds kWidth floats, I holds kWidth numbers of 32 bits with the operators of uint32_t,
// and D holds kWidth / kParts doubles. Each vector type loads and stores any element type at any address.
struct Scalar {
  static constexpr int kWidth = 1, kParts = 1;
  static constexpr bool kOnDevice = false;
  // Whether the type has end_streams() and stream<T>(to, value), a store that bypasses the caches. `to` must be aligned
  // to the vector.
  static constexpr bool kStreams = false;
  using F = float;
  using D = double;
  using I = uint32_t;

  static F set(float value) { return value; }
  template <typename T>
  static F load(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return to_float(value);
  }
  template <typename T>
  static void store(void* to, F value) {
    const T rounded = from_float<T>(value);
    std::memcpy(to, &rounded, sizeof rounded);
  }
  // The following load and store handle the first `lanes` (1 to kWidth - 1) elements. The other lanes are loaded as 0,
  // and are not stored.
  template <typename T>
  static F load(const void* from, int /*lanes*/) {
    return load<T>(from);
  }
  template <typename T>
  static void store(void* to, F value, int /*lanes*/) {
    store<T>(to, value);
  }
  // Stores round_at_random() of each lane. With `lanes`, stores only the first lanes.
  static void store_at_random(void* to, F value, I random) {
    const Bf16 rounded = round_at_random(value, random);
    std::memcpy(to, &rounded, sizeof rounded);
  }
  static void store_at_random(void* to, F value, I random, int /*lanes*/) { store_at_random(to, value, random); }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return std::fma(a, b, c); }  // a * b + c, rounded once
  static F sqrt(F a) { return std::sqrt(a); }
  // Returns a if selector > 0, 0 - a if selector < 0, else 0.
  static F by_sign(F a, F selector) { return selector > 0 ? a : selector < 0 ? 0.0f - a : 0.0f; }

  // Returns a if it is finite, else b.
  static F finite_or(F a, F b) { return std::isfinite(a) ? a : b; }

  // Loads 8-bit codes as kRaised + code.
  static F load_codes(const void* from) { return kRaised + static_cast<float>(*static_cast<const uint8_t*>(from)); }
  // Stores four vectors of integers from -2^15 to 255 as codes; negative ones as 0.
  static void store_codes(void* to, const I (&codes)[4]) {
    for (int i = 0; i < 4; ++i)
      static_cast<uint8_t*>(to)[i] = static_cast<int32_t>(codes[i]) < 0 ? uint8_t{0} : static_cast<uint8_t>(codes[i]);
  }
  static I truncate(F value) { return static_cast<uint32_t>(static_cast<int32_t>(value)); }
  static F min(F a, F b) { return a < b ? a : b; }
  // Returns a, with the other sign where `sign` is negative.
  static F flip_by(F a, F sign) { return float_of(bits_of(a) ^ (bits_of(sign) & 0x80000000u)); }
  // Returns `count`, plus 1 where a > b.
  static I count_above(F a, F b, I count) { return count + (a > b ? 1u : 0u); }
  // Multiplies the high half of the bits by a factor below 2^16, and returns the high half of the product.
  static I multiply_high(I bits, uint32_t factor) { return ((bits >> 16) * factor) >> 16; }
  // A table of 8 entries, aligned to 32 bytes, and its lookup by the last 3 bits of a number.
  using Table = const float*;
  static Table table(const float* entries) { return entries; }
  static F lookup(Table table, I number) { return table[number % 8]; }

  static D zero() { return 0; }
  // Converts `value` to fp64, in kParts vectors D.
  static void widen(F value, D* parts) { parts[0] = value; }
  // Returns a * a + b. a * a must be exact, as it is for widened values.
  static D square_plus(D a, D b) { return a * a + b; }
  // Returns the larger of a and |b|, lane by lane; either one where b is NaN.
  static F max_abs(F a, F b) { return std::fabs(b) > a ? std::fabs(b) : a; }
  static void store_doubles(double* to, D value) { *to = value; }
};

}  // namespace
}  // namespace zeroshard::kernels

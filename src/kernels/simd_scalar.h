#pragma once
#include <cmath>

#include "kernels/half.h"

namespace zeroshard::kernels {
namespace {

// A vector type with one element. It is the reference that the other vector types must match bit for bit. A vector type
// has kWidth lanes of float (F), kWidth lanes of 32 bits with the operators of uint32_t (I), and kWidth lanes of double
// in kParts pieces (D). It loads and stores any element type at any address.
struct Scalar {
  static constexpr int kWidth = 1, kParts = 1;
  static constexpr bool kOnDevice = false;
  // Whether the type has end_streams() and stream<T>(to, value), a store that bypasses the caches. The address must be
  // aligned to the vector.
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
  // Loads and stores the first `lanes` (1 to kWidth - 1) elements. The other lanes are 0, and are not stored.
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

  // These functions load 8-bit codes as integers, and store integers up to 255 as codes.
  static I load_codes(const void* from) { return *static_cast<const uint8_t*>(from); }
  static void store_codes(void* to, I codes) { *static_cast<uint8_t*>(to) = static_cast<uint8_t>(codes); }
  static F from_integer(I value) { return static_cast<float>(value); }
  static I truncate(F value) { return static_cast<uint32_t>(value); }  // value is from 0 to 2^31
  static F min(F a, F b) { return a < b ? a : b; }
  // Returns `count`, plus 1 where a > b.
  static I count_above(F a, F b, I count) { return count + (a > b ? 1u : 0u); }
  // A table of 16 entries, aligned to 64 bytes, and its lookup by numbers below 16.
  using Table = const float*;
  static Table table(const float* entries) { return entries; }
  static F lookup(Table table, I entry) { return table[entry]; }
  // Whether the type has lookup_wide(), a lookup in 32 entries.
  static constexpr bool kWideTables = true;
  static F lookup_wide(const float* entries, I entry) { return entries[entry]; }

  static D zero() { return 0; }
  // Converts value to fp64, in kParts vectors.
  static void widen(F value, D* parts) { parts[0] = value; }
  // Returns a * a + b. a * a must be exact, as it is for widened values.
  static D square_plus(D a, D b) { return a * a + b; }
  // Returns the larger of a and |b|, lane by lane; either one where b is NaN.
  static F max_abs(F a, F b) { return std::fabs(b) > a ? std::fabs(b) : a; }
  static void store_doubles(double* to, D value) { *to = value; }
};

}  // namespace
}  // namespace zeroshard::kernels

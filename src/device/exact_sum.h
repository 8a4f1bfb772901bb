#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace zeroshard {

// Adds doubles without rounding, so that the sum does not depend on their order, or on how they are split among ranks.
// The value is a fixed-point number of 64-bit limbs. Each limb holds 32 bits of the number, and the limbs together can
// hold every finite double. Limbs are added as integers, so an all-reduce of limbs() adds the sums of all ranks
// exactly. Source: the long accumulator of U. Kulisch, "Computer Arithmetic and Validity" (2nd ed., 2013), chapter 8.
class ExactSum {
 public:
  // 2^-1074 .. 2^1023 take 66 limbs of 32 bits. Two more limbs take carries. The last limb is not part of the number.
  // It is 0 unless a term was not finite.
  static constexpr size_t kNumLimbs = 69;
  static constexpr size_t kNonFinite = kNumLimbs - 1;

  void add(double value);
  void add(const ExactSum& other);
  // The limbs of up to 2^20 ranks may be added up before value() is called.
  std::array<int64_t, kNumLimbs>& limbs() { return limbs_; }
  const std::array<int64_t, kNumLimbs>& limbs() const { return limbs_; }

  bool is_finite() const { return limbs_[kNonFinite] == 0; }
  // Returns the sum, rounded to a double within one ulp. Returns NaN if a term was not finite.
  double value() const;

 private:
  void normalize();

  std::array<int64_t, kNumLimbs> limbs_{};
  int pending_ = 0;  // additions since the last normalize()
};

}  // namespace zeroshard

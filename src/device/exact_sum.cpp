#include "device/exact_sum.h"

#include <cmath>
#include <limits>

namespace zeroshard {
namespace {

constexpr int kLimbBits = 32;
constexpr int kLowestExponent = -1074;  // exponent of the smallest denormal
constexpr int kMaxPending = 1 << 10;    // terms until normalize(), so that every limb stays below 2^43

}  // namespace

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    limbs_[kNonFinite] = 1;
    return;
  }
  if (value == 0) return;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);               // 0.5 <= |fraction| < 1
  int64_t mantissa = static_cast<int64_t>(std::ldexp(fraction, 53));  // exact
  int shift = exponent - 53 - kLowestExponent;                        // value = mantissa * 2^(shift - 1074)
  if (shift < 0) {                                                    // a denormal, so `mantissa` ends in zeros
    mantissa >>= -shift;
    shift = 0;
  }
  const bool negative = mantissa < 0;
  const unsigned __int128 bits = static_cast<unsigned __int128>(negative ? -mantissa : mantissa) << (shift % kLimbBits);
  for (size_t i = 0; i < 3; ++i) {
    const auto part = static_cast<int64_t>(static_cast<uint64_t>(bits >> (kLimbBits * i)) & 0xffffffffU);
    limbs_[size_t(shift / kLimbBits) + i] += negative ? -part : part;
  }
  if (++pending_ == kMaxPending) normalize();
}

void ExactSum::add(const ExactSum& other) {
  normalize();
  ExactSum carried = other;
  carried.normalize();
  for (size_t i = 0; i < kNumLimbs; ++i) limbs_[i] += carried.limbs_[i];
  normalize();
}

// Moves carries to higher limbs, so that every limb of the number except its highest is in [0, 2^32).
void ExactSum::normalize() {
  int64_t carry = 0;
  for (size_t i = 0; i < kNonFinite; ++i) {
    const int64_t limb = limbs_[i] + carry;
    carry = limb >> kLimbBits;  // rounds down, also for negative limbs
    limbs_[i] = i + 1 < kNonFinite ? limb - (carry << kLimbBits) : limb;
  }
  pending_ = 0;
}

double ExactSum::value() const {
  if (!is_finite()) return std::numeric_limits<double>::quiet_NaN();
  ExactSum carried = *this;
  carried.normalize();
  // If the sum is negative, only its highest limb is negative.
  const bool negative = carried.limbs_[kNonFinite - 1] < 0;
  if (negative) {
    for (size_t i = 0; i < kNonFinite; ++i) carried.limbs_[i] = -carried.limbs_[i];
    carried.normalize();
  }
  double sum = 0;
  for (size_t i = kNonFinite; i-- > 0;) {
    sum += std::ldexp(static_cast<double>(carried.limbs_[i]), int(i) * kLimbBits + kLowestExponent);
  }
  return negative ? -sum : sum;
}

}  // namespace zeroshard

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/optim_impl.h"
#include "kernels/simd_scalar.h"
#include "support/random.h"

namespace zeroshard::kernels {
namespace {

using testing::SeededRandom;

constexpr float kInf = std::numeric_limits<float>::infinity();

float bias_correction(double beta2, int step) {
  return static_cast<float>(std::sqrt(1 - std::pow(beta2, step)));
}

// The bits of a quotient depend on the two mantissas alone: one factor of two is as good as another.
TEST(Divisor, EveryMantissaHasTheBitsOfADivision) {
  for (const float value : {bias_correction(0.999, 1), bias_correction(0.999, 7), bias_correction(0.95, 3), 1.0f,
                            std::nextafter(1.0f, 0.0f), std::nextafter(1.0f, 2.0f)}) {
    const Divisor<Scalar> divisor(value);
    for (uint32_t mantissa = 0; mantissa < (1u << 23); ++mantissa) {
      const float a = std::bit_cast<float>(0x3f800000u | mantissa);
      if (divisor.divide(a) != a / value) FAIL() << a << " / " << value;  // an assertion for each takes too long
    }
  }
}

TEST(Divisor, RandomDivisorsHaveTheBitsOfADivision) {
  SeededRandom random(1);
  const auto mantissa = [&] { return std::bit_cast<float>(0x3f800000u | static_cast<uint32_t>(random() >> 41)); };
  for (int i = 0; i < 20'000; ++i) {
    const float value = std::ldexp(mantissa(), -int(random() % 30));
    const Divisor<Scalar> divisor(value);
    for (int j = 0; j < 50; ++j) {
      const float a = std::ldexp(mantissa(), int(random() % 140) - 75);  // the roots of all floats
      ASSERT_EQ(divisor.divide(a), a / value) << a << " / " << value;
    }
  }
}

TEST(Divisor, ZeroInfinityAndNaNAreKept) {
  const Divisor<Scalar> divisor(bias_correction(0.999, 1));
  EXPECT_EQ(divisor.divide(0.0f), 0.0f);
  EXPECT_EQ(divisor.divide(kInf), kInf);
  EXPECT_TRUE(std::isnan(divisor.divide(std::nanf(""))));
}

}  // namespace
}  // namespace zeroshard::kernels

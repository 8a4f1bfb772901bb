#include "device/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::Random;
using testing::SeededRandom;
using testing::seeds;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kDenormal = std::numeric_limits<double>::denorm_min();
constexpr double kMax = std::numeric_limits<double>::max();

ExactSum sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum;
}

// Terms whose exponents spread over `spread` powers of two around 2^center.
std::vector<double> random_values(Random& random, size_t count, int center, int spread, bool negative) {
  std::vector<double> values(count);
  for (double& value : values) {
    const double fraction = std::ldexp(double(random() >> 11), -53);
    value = std::ldexp(fraction, center + int(random() % uint64_t(spread)) - spread / 2);
    if (negative && (random() & 1) != 0) value = -value;
  }
  return values;
}

// Distance in representable doubles.
int64_t ulps_between(double a, double b) {
  const auto ordered = [](double value) {
    const auto bits = std::bit_cast<int64_t>(value);
    return bits < 0 ? std::numeric_limits<int64_t>::min() - bits : bits;
  };
  return std::abs(ordered(a) - ordered(b));
}

TEST(ExactSum, OneTermIsGivenBackExactly) {
  for (const double value : {0.0, 1.0, -1.0, 1.0 / 3, kDenormal, -kDenormal, 0x1p-1022, 0x1.fffffffffffffp-1023 / 2,
                             kMax, -kMax, 1e-310, 0x1p1023}) {
    EXPECT_EQ(sum_of({value}).value(), value) << value;
  }
}

TEST(ExactSum, OrderAndSplitDoNotMatter) {
  for (const uint64_t seed : seeds(100)) {
    SeededRandom random(seed);
    std::vector<double> values = random_values(random, 1 + random() % 300, 0, 1 + int(random() % 1000), true);
    const double expected = sum_of(values).value();
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::shuffle(values.begin(), values.end(), random);
      EXPECT_EQ(sum_of(values).value(), expected);
      std::vector<ExactSum> parts(1 + random() % 7);
      for (const double value : values) parts[random() % parts.size()].add(value);
      ExactSum total;
      for (const ExactSum& part : parts) total.add(part);
      EXPECT_EQ(total.value(), expected);
    }
  }
}

TEST(ExactSum, LimbsMayBeAddedAsAnAllReduceDoes) {
  for (const uint64_t seed : seeds(50)) {
    SeededRandom random(seed);
    const std::vector<double> values = random_values(random, 500, 0, 600, true);
    std::vector<ExactSum> ranks(7);
    for (const double value : values) ranks[random() % ranks.size()].add(value);
    ExactSum total;
    for (const ExactSum& rank : ranks) {
      for (size_t i = 0; i < ExactSum::kNumLimbs; ++i) total.limbs()[i] += rank.limbs()[i];
    }
    EXPECT_EQ(total.value(), sum_of(values).value());
  }
}

TEST(ExactSum, AgreesWithQuadPrecision) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    // 53 bits, a spread of 40 powers of two and 10 bits of carries fit 113 bits: the quad sum is exact.
    const std::vector<double> values = random_values(random, 1000, int(random() % 1800) - 900, 40, (seed & 1) != 0);
    __float128 expected = 0;
    for (const double value : values) expected += value;
    EXPECT_LE(ulps_between(sum_of(values).value(), double(expected)), 1);
  }
}

TEST(ExactSum, DenormalsAreIntegers) {
  SeededRandom random(1);
  ExactSum sum;
  int64_t expected = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto value = int64_t(random() >> 25) - (int64_t{1} << 38);
    sum.add(double(value) * kDenormal);
    expected += value;
  }
  EXPECT_EQ(sum.value(), double(expected) * kDenormal);
}

TEST(ExactSum, SmallTermsSurviveLargeOnes) {
  EXPECT_EQ(sum_of({1e300, kDenormal, -1e300}).value(), kDenormal);
  EXPECT_EQ(sum_of({kMax, kMax, -kMax, 3.0, -kMax}).value(), 3.0);
  EXPECT_EQ(sum_of({-1e300, -kDenormal, 1e300}).value(), -kDenormal);
  EXPECT_EQ(sum_of({1.0, 0x1p-60, -1.0, -0x1p-60}).value(), 0.0);
}

TEST(ExactSum, MoreTermsThanFitWithoutCarrying) {
  ExactSum sum;
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i) sum.add(0x1.fffffffffffffp0);
  ExactSum expected;
  for (int i = 0; i < kCount; ++i) expected.add(2.0);
  EXPECT_EQ(sum.value(), double(kCount) * 2 - kCount * 0x1p-52);
  for (int64_t& limb : sum.limbs()) EXPECT_LT(std::abs(limb), int64_t{1} << 43);  // 2^20 ranks can be added
}

TEST(ExactSum, OverflowIsInfinite) {
  EXPECT_EQ(sum_of({kMax, kMax}).value(), kInf);
  EXPECT_EQ(sum_of({-kMax, -kMax}).value(), -kInf);
}

TEST(ExactSum, NonFiniteTermsAreFlagged) {
  for (const double bad : {kInf, -kInf, std::numeric_limits<double>::quiet_NaN()}) {
    ExactSum sum = sum_of({1, bad, 2});
    EXPECT_FALSE(sum.is_finite());
    EXPECT_TRUE(std::isnan(sum.value()));
    ExactSum other = sum_of({1});
    other.add(sum);
    EXPECT_FALSE(other.is_finite());
    other.add(sum);
    EXPECT_FALSE(other.is_finite());
  }
  EXPECT_TRUE(sum_of({kMax, kMax}).is_finite());  // the terms were
}

TEST(ExactSum, AddingToItselfDoubles) {
  ExactSum sum = sum_of({1.5, -0x1p-70});
  sum.add(sum);
  EXPECT_EQ(sum.value(), sum_of({3.0, -0x1p-69}).value());
}

}  // namespace
}  // namespace zeroshard

#include "monitor/number_text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

TEST(NumberText, ExactTextGivesTheSameDouble) {
  SeededRandom random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::optional<double> back = parse_number(exact_text(value));
    ASSERT_TRUE(back) << exact_text(value);
    EXPECT_EQ(std::bit_cast<uint64_t>(*back), std::bit_cast<uint64_t>(value)) << exact_text(value);
  }
}

TEST(NumberText, WhatIsNotFiniteHasAText) {
  EXPECT_EQ(exact_text(std::nan("")), "NaN");
  EXPECT_EQ(exact_text(INFINITY), "Infinity");
  EXPECT_EQ(exact_text(-INFINITY), "-Infinity");
  EXPECT_TRUE(std::isnan(parse_number("NaN").value()));
  EXPECT_EQ(parse_number("-Infinity"), -INFINITY);
}

TEST(NumberText, OtherTextIsNoNumber) {
  for (const char* text : {"", " 1", "1 ", "1,5", "loss", "0x10", "1e", "--1", "1e999"})
    EXPECT_FALSE(parse_number(text)) << text;
}

TEST(NumberText, ForPeople) {
  EXPECT_EQ(value_text(3.21011), "3.2101");
  EXPECT_EQ(value_text(0), "0.0000");
  EXPECT_EQ(value_text(1.234e-7), "1.23e-07");
  EXPECT_EQ(value_text(-3.4e9), "-3.40e+09");
  EXPECT_EQ(value_text(INFINITY), "Infinity");
  EXPECT_EQ(rate_text(12345), "12.3k");
  EXPECT_EQ(rate_text(999.94), "999.9");
  EXPECT_EQ(rate_text(999.96), "1.0k");  // not 1000.0
  EXPECT_EQ(rate_text(3e15), "3000T");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(3.214e9), "3.21 GB");
  EXPECT_EQ(bytes_text(999.999e6), "1.00 GB");
}

TEST(NumberText, Durations) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(80), "1m20s");
  EXPECT_EQ(duration_text(7500), "2h05m");
  EXPECT_EQ(duration_text(86400 * 3 + 3600 * 4), "3d04h");
  for (const double none : {-1.0, 1e300, double(NAN), double(INFINITY)}) EXPECT_EQ(duration_text(none), "?");
}

}  // namespace
}  // namespace zeroshard

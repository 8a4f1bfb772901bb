#include "kernels/support.h"

namespace zeroshard::kernels::test {
namespace {

class Convert : public EachTable {};
ZS_EACH_TABLE(Convert);

constexpr DType k16BitDtypes[] = {DType::kBFloat16, DType::kFloat16};

TEST_P(Convert, WidensAll65536Values) {
  for (const DType dtype : k16BitDtypes) {
    std::vector<uint16_t> bits(65536);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
    std::vector<float> values(65536, -1.0f);
    pack(table(), bits.data(), dtype, values.data(), DType::kFloat32, 1.0f, 65536);
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_TRUE(same_float(values[i], decode16(bits[i], dtype))) << name_of(dtype) << " " << i << ": " << values[i];
    }
  }
}

TEST_P(Convert, NarrowsWhatItWidened) {
  for (const DType dtype : k16BitDtypes) {
    std::vector<uint16_t> bits(65536), back(65536);
    std::vector<float> values(65536);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
    pack(table(), bits.data(), dtype, values.data(), DType::kFloat32, 1.0f, 65536);
    pack(table(), values.data(), DType::kFloat32, back.data(), dtype, 1.0f, 65536);
    for (size_t i = 0; i < bits.size(); ++i) {
      const uint16_t want = std::isnan(values[i]) ? (dtype == DType::kBFloat16 ? 0x7fc0 : 0x7e00) : bits[i];
      ASSERT_EQ(back[i], want) << name_of(dtype) << " " << i;
    }
  }
}

// Every halfway point between neighbours, and the floats just below and above it.
TEST_P(Convert, RoundsTiesToEven) {
  for (const DType dtype : k16BitDtypes) {
    std::vector<float> values;
    for (uint32_t bits = 0; bits < 0x7fff; ++bits) {
      const double low = decode16(static_cast<uint16_t>(bits), dtype);
      const double high = decode16(static_cast<uint16_t>(bits + 1), dtype);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float middle = static_cast<float>((low + high) / 2);
      for (const float value : {middle, std::nextafterf(middle, 0), std::nextafterf(middle, INFINITY)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    std::vector<uint16_t> got(values.size());
    pack(table(), values.data(), DType::kFloat32, got.data(), dtype, 1.0f, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], encode16(values[i], dtype)) << name_of(dtype) << " of " << values[i];
    }
  }
}

TEST_P(Convert, RoundsRandomBitPatterns) {
  SeededRandom random(20240501);
  for (const DType dtype : k16BitDtypes) {
    std::vector<float> values(1 << 18);
    for (auto& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    // Half of them where fp16 has its subnormals and its largest values.
    for (size_t i = 0; i < values.size(); i += 2) {
      values[i] =
          std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random), static_cast<int>(random() % 44) - 26);
    }
    std::vector<uint16_t> got(values.size());
    pack(table(), values.data(), DType::kFloat32, got.data(), dtype, 1.0f, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], encode16(values[i], dtype)) << name_of(dtype) << " of " << values[i];
    }
  }
}

TEST_P(Convert, OverflowAndSmallest) {
  const auto narrow = [&](float value, DType dtype) {
    uint16_t bits = 0;
    pack(table(), &value, DType::kFloat32, &bits, dtype, 1.0f, 1);
    return bits;
  };
  EXPECT_EQ(narrow(65519.996f, DType::kFloat16), 0x7bff);
  EXPECT_EQ(narrow(65520.0f, DType::kFloat16), 0x7c00);
  EXPECT_EQ(narrow(-1e30f, DType::kFloat16), 0xfc00);
  EXPECT_EQ(narrow(0x1p-25f, DType::kFloat16), 0x0000);
  EXPECT_EQ(narrow(0x1.000002p-25f, DType::kFloat16), 0x0001);
  EXPECT_EQ(narrow(0x1p-149f, DType::kFloat16), 0x0000);
  EXPECT_EQ(narrow(-0.0f, DType::kFloat16), 0x8000);
  EXPECT_EQ(narrow(std::numeric_limits<float>::max(), DType::kBFloat16), 0x7f80);
  EXPECT_EQ(narrow(0x1p-133f, DType::kBFloat16), 0x0001);
  EXPECT_EQ(narrow(-0x1p-149f, DType::kBFloat16), 0x8000);
  EXPECT_EQ(narrow(std::bit_cast<float>(0x7f800001u), DType::kBFloat16), 0x7fc0);  // not infinity
  EXPECT_EQ(narrow(std::bit_cast<float>(0xffffffffu), DType::kBFloat16), 0x7fc0);  // not -0
  EXPECT_EQ(narrow(std::bit_cast<float>(0x7f800001u), DType::kFloat16), 0x7e00);
}

}  // namespace
}  // namespace zeroshard::kernels::test

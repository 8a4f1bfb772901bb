#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/table.h"
#include "support/random.h"

// References written apart from the kernels: conversions by arithmetic on doubles, buffers with guards around them.
namespace zeroshard::kernels::test {

inline constexpr DType kAllDtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

struct Format {
  int fraction_bits, min_exponent, max_exponent;
};
inline Format format_of(DType dtype) {
  return dtype == DType::kBFloat16 ? Format{7, -126, 127} : Format{10, -14, 15};
}

inline float decode16(uint16_t bits, DType dtype) {
  const Format f = format_of(dtype);
  const int exponent_field = (bits & 0x7fff) >> f.fraction_bits, bias = 1 - f.min_exponent;
  const double fraction = std::ldexp(bits & ((1 << f.fraction_bits) - 1), -f.fraction_bits);
  double value;
  if (exponent_field > f.max_exponent + bias) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent_field == 0) {
    value = std::ldexp(fraction, f.min_exponent);
  } else {
    value = std::ldexp(1 + fraction, exponent_field - bias);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

inline uint16_t encode16(float value, DType dtype) {
  if (std::isnan(value)) return dtype == DType::kBFloat16 ? 0x7fc0 : 0x7e00;
  const Format f = format_of(dtype);
  const int sign = std::signbit(value) ? 0x8000 : 0, infinity = (f.max_exponent - f.min_exponent + 2)
                                                                << f.fraction_bits;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(magnitude), f.min_exponent);
  const double units = std::nearbyint(std::ldexp(magnitude, f.fraction_bits - exponent));  // halves go to even
  // units counts from the subnormals up: a carry out of the fraction moves on to the next exponent by itself.
  const int64_t bits =
      static_cast<int64_t>(units) + (static_cast<int64_t>(exponent - f.min_exponent) << f.fraction_bits);
  return static_cast<uint16_t>(sign | std::min<int64_t>(bits, infinity));
}

inline float rounded(float value, DType dtype) {
  return dtype == DType::kFloat32 ? value : decode16(encode16(value, dtype), dtype);
}

// Elements at a chosen offset, with 64 guard bytes on both sides.
class Buffer {
 public:
  Buffer(DType dtype, int64_t numel, int offset_bytes = 0)
      : dtype_(dtype), numel_(numel), offset_(kGuard + offset_bytes), bytes_(offset_ + size() + kGuard, kFill) {
    for (int64_t i = 0; i < numel; ++i) set(i, 0);
  }

  void* data() { return bytes_.data() + offset_; }
  float* floats() { return reinterpret_cast<float*>(data()); }
  const void* at(int64_t i) const { return bytes_.data() + offset_ + i * element_size(dtype_); }
  void* at(int64_t i) { return bytes_.data() + offset_ + i * element_size(dtype_); }
  DType dtype() const { return dtype_; }
  int64_t numel() const { return numel_; }
  // The elements with the guards, and where among them the elements begin.
  std::vector<uint8_t>& bytes() { return bytes_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  size_t offset() const { return offset_; }

  void set(int64_t i, float value) {
    if (dtype_ == DType::kFloat32) {
      std::memcpy(at(i), &value, 4);
    } else {
      const uint16_t bits = encode16(value, dtype_);
      std::memcpy(at(i), &bits, 2);
    }
  }
  float get(int64_t i) const {
    if (dtype_ == DType::kFloat32) {
      float value;
      std::memcpy(&value, at(i), 4);
      return value;
    }
    return decode16(raw16(i), dtype_);
  }
  uint16_t raw16(int64_t i) const {
    uint16_t bits;
    std::memcpy(&bits, at(i), 2);
    return bits;
  }
  bool guards_intact() const {
    const auto intact = [](const uint8_t* from, size_t count) {
      for (size_t i = 0; i < count; ++i) {
        if (from[i] != kFill) return false;
      }
      return true;
    };
    return intact(bytes_.data(), offset_) && intact(bytes_.data() + offset_ + size(), kGuard);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kFill = 0xa5;
  size_t size() const { return static_cast<size_t>(numel_ * element_size(dtype_)); }

  DType dtype_;
  int64_t numel_;
  size_t offset_;
  std::vector<uint8_t> bytes_;
};

// Same bits, or both NaN.
inline bool same_float(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Every element of `got` has the bits of `want` (NaNs of fp32 aside), and nothing around it was written.
inline ::testing::AssertionResult same(const Buffer& got, const Buffer& want) {
  for (int64_t i = 0; i < got.numel(); ++i) {
    const bool equal =
        got.dtype() == DType::kFloat32 ? same_float(got.get(i), want.get(i)) : got.raw16(i) == want.raw16(i);
    if (!equal)
      return ::testing::AssertionFailure() << "element " << i << ": " << got.get(i) << " is not " << want.get(i);
  }
  if (!got.guards_intact()) return ::testing::AssertionFailure() << "bytes around the buffer were written";
  return ::testing::AssertionSuccess();
}

using zeroshard::testing::Random;
using zeroshard::testing::SeededRandom;
using zeroshard::testing::seeds;

// Mostly numbers of ordinary size; some tiny, huge, subnormal, zero, and when asked non-finite.
inline float random_value(Random& random, bool non_finite = false) {
  std::normal_distribution<float> normal;
  const auto kind = random() % 32;
  if (kind == 0) return 0.0f;
  if (kind == 1) return -0.0f;
  if (kind == 2) return normal(random) * 1e-40f;
  if (kind == 3) return normal(random) * 1e-7f;
  if (kind == 4) return normal(random) * 1e4f;
  if (non_finite && kind == 5) return std::numeric_limits<float>::infinity() * (random() % 2 == 0 ? 1.0f : -1.0f);
  if (non_finite && kind == 6) return std::numeric_limits<float>::quiet_NaN();
  if (non_finite && kind == 7) return std::bit_cast<float>(static_cast<uint32_t>(random()));
  return normal(random);
}
inline void fill(Buffer& buffer, Random& random, bool non_finite = false) {
  for (int64_t i = 0; i < buffer.numel(); ++i) buffer.set(i, random_value(random, non_finite));
}

// Begins of consecutive ranges that cover `numel`, cut at random places; the last entry is numel.
inline std::vector<int64_t> random_cuts(int64_t numel, Random& random) {
  std::vector<int64_t> cuts{0};
  while (cuts.back() < numel) {
    const int64_t length = static_cast<int64_t>(random() % 3 == 0 ? random() % 200 : random() % 20);
    cuts.push_back(std::min(numel, cuts.back() + length));
  }
  return cuts;
}

// Lengths around every vector width, and one of several blocks.
inline std::vector<int64_t> lengths() {
  std::vector<int64_t> all;
  for (int64_t n = 0; n <= 70; ++n) all.push_back(n);
  for (int64_t n : {127, 128, 129, 1023, 1024, 1025, 2500}) all.push_back(n);
  return all;
}

// Tests over every instruction set of this processor.
class EachTable : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table() const { return *GetParam(); }
};
inline std::string table_name(const ::testing::TestParamInfo<const KernelTable*>& info) {
  return info.param->name;
}

// The number of the step that is to come, counted from 1.
inline void set_step(AdamArgs& args, int64_t step) {
  args.step = step;
}
inline void set_step(AdagradArgs& args, int64_t step) {
  args.step = step;
}
inline void set_step(SgdArgs& args, int64_t step) {
  args.first_step = step == 1;
}
inline void set_step(LionArgs&, int64_t) {}

}  // namespace zeroshard::kernels::test

#define ZS_EACH_TABLE(suite)                                                                          \
  INSTANTIATE_TEST_SUITE_P(Isa, suite, ::testing::ValuesIn(::zeroshard::kernels::available_tables()), \
                           ::zeroshard::kernels::test::table_name)

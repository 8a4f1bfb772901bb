#include "kernels/support.h"
#include "support/tree_sum.h"
#include "zeroshard/error.h"

namespace zeroshard::kernels::test {
namespace {

class Sum : public EachTable {};
ZS_EACH_TABLE(Sum);

constexpr float kScale = 0.37f;  // not a power of two: a skipped or repeated rounding shows

TEST_P(Sum, PackMatchesReference) {
  SeededRandom random(1);
  for (const DType from : kAllDtypes) {
    for (const DType to : kAllDtypes) {
      for (const int64_t numel : lengths()) {
        Buffer src(from, numel, static_cast<int>(random() % 17)), dst(to, numel, static_cast<int>(random() % 17));
        Buffer want(to, numel);
        fill(src, random, true);
        for (int64_t i = 0; i < numel; ++i) want.set(i, src.get(i) * kScale);
        pack(table(), src.data(), from, dst.data(), to, kScale, numel);
        ASSERT_TRUE(same(dst, want)) << name_of(from) << " to " << name_of(to) << ", numel " << numel;
      }
    }
  }
}

TEST_P(Sum, PackInPlace) {
  SeededRandom random(2);
  for (const DType dtype : kAllDtypes) {
    Buffer buffer(dtype, 101, 2), want(dtype, 101);
    fill(buffer, random);
    for (int64_t i = 0; i < 101; ++i) want.set(i, buffer.get(i) * kScale);
    pack(table(), buffer.data(), dtype, buffer.data(), dtype, kScale, 101);
    EXPECT_TRUE(same(buffer, want)) << name_of(dtype);
  }
}

TEST_P(Sum, PackAddMatchesReference) {
  SeededRandom random(3);
  for (const DType from : kAllDtypes) {
    for (const DType to : kAllDtypes) {
      for (const int64_t numel : lengths()) {
        Buffer src(from, numel, static_cast<int>(random() % 17)), dst(to, numel, static_cast<int>(random() % 17));
        Buffer want(to, numel);
        fill(src, random, true);
        fill(dst, random, true);
        for (int64_t i = 0; i < numel; ++i) {
          const float scaled = src.get(i) * kScale;
          want.set(i, dst.get(i) + scaled);
        }
        pack_add(table(), src.data(), from, dst.data(), to, kScale, numel);
        ASSERT_TRUE(same(dst, want)) << name_of(from) << " to " << name_of(to) << ", numel " << numel;
      }
    }
  }
}

TEST_P(Sum, PiecesAreAddedAsATreeAndRoundedOnce) {
  SeededRandom random(4);
  for (const DType from : kAllDtypes) {
    for (const DType to : kAllDtypes) {
      for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 25, 70}) {
        for (const bool accumulate : {false, true}) {
          const int64_t numel = static_cast<int64_t>(random() % 80);
          std::vector<Buffer> pieces;
          std::vector<const void*> pointers;
          for (int p = 0; p < count; ++p) {
            pieces.emplace_back(from, numel, static_cast<int>(random() % 9));
            fill(pieces.back(), random);
          }
          for (auto& piece : pieces) pointers.push_back(piece.data());
          Buffer out(to, numel, static_cast<int>(random() % 9)), want(to, numel);
          fill(out, random);
          for (int64_t i = 0; i < numel; ++i) {
            std::vector<float> values;
            for (const Buffer& piece : pieces) values.push_back(piece.get(i));
            const float sum = testing::tree_sum<float>(values) * kScale;
            want.set(i, accumulate ? out.get(i) + sum : sum);
          }
          sum_in_order(table(), pointers, from, kScale, out.data(), to, accumulate, numel);
          ASSERT_TRUE(same(out, want)) << name_of(from) << " to " << name_of(to) << ", " << count << " pieces of "
                                       << numel << ", accumulate " << accumulate;
        }
      }
    }
  }
}

// 1e8 + 1 - 1e8 depends on the order: no two trees of these pieces may be confused.
TEST_P(Sum, TheTreeIsThatOfThePieces) {
  const float big = 1e8f, one = 1, minus = -1e8f;
  const auto sum = [&](std::vector<const void*> pieces) {
    float out = -1;
    sum_in_order(table(), pieces, DType::kFloat32, 1.0f, &out, DType::kFloat32, false, 1);
    return out;
  };
  EXPECT_EQ(sum({&big, &one, &minus}), 0.0f);
  EXPECT_EQ(sum({&big, &minus, &one}), 1.0f);
  EXPECT_EQ(sum({&one, &big, &minus, &one}), 0.0f);
  EXPECT_EQ(sum({&big, &minus, &one, &one}), 2.0f);
  EXPECT_EQ(sum({&one, &one, &big, &minus, &one}), 3.0f);
}

// So hosts with a power of two of ranks may send their sums instead of their pieces.
TEST_P(Sum, SumsOfAPowerOfTwoOfPiecesAreSubtrees) {
  SeededRandom random(6);
  for (const int group : {2, 4, 8, 16}) {
    for (int groups = 1; groups <= 5; ++groups) {
      constexpr int64_t kNumel = 75;
      std::vector<Buffer> pieces, sums;
      std::vector<const void*> pointers, nodes;
      for (int p = 0; p < group * groups; ++p) fill(pieces.emplace_back(DType::kBFloat16, kNumel), random);
      for (Buffer& piece : pieces) pointers.push_back(piece.data());
      for (int g = 0; g < groups; ++g)
        sum_in_order(table(), std::span(pointers).subspan(size_t(g * group), size_t(group)), DType::kBFloat16, 1,
                     sums.emplace_back(DType::kFloat32, kNumel).data(), DType::kFloat32, false, kNumel);
      for (Buffer& sum : sums) nodes.push_back(sum.data());
      Buffer out(DType::kBFloat16, kNumel), want(DType::kBFloat16, kNumel);
      sum_in_order(table(), pointers, DType::kBFloat16, kScale, want.data(), DType::kBFloat16, false, kNumel);
      sum_in_order(table(), nodes, DType::kFloat32, kScale, out.data(), DType::kBFloat16, false, kNumel);
      ASSERT_TRUE(same(out, want)) << groups << " groups of " << group;
    }
  }
}

// Three bf16 values whose fp32 sum differs from the sum rounded to bf16 after every addition.
TEST_P(Sum, Bf16PiecesAreSummedInFp32) {
  const uint16_t one = 0x3f80, small = 0x3b80;  // 1 and 2^-8: half an ulp of 1
  const void* pieces[] = {&one, &small, &small};
  uint16_t out = 0;
  sum_in_order(table(), pieces, DType::kBFloat16, 1.0f, &out, DType::kBFloat16, false, 1);
  EXPECT_EQ(out, 0x3f81);
}

TEST_P(Sum, OutMayBeAnyPiece) {
  SeededRandom random(5);
  for (const DType dtype : kAllDtypes) {
    for (int count = 1; count <= 5; ++count) {
      for (int target = 0; target < count; ++target) {
        const int64_t numel = 75;
        std::vector<Buffer> pieces;
        for (int p = 0; p < count; ++p) {
          pieces.emplace_back(dtype, numel);
          fill(pieces.back(), random);
        }
        Buffer want(dtype, numel);
        std::vector<const void*> pointers;
        for (auto& piece : pieces) pointers.push_back(piece.data());
        sum_in_order(*scalar_table(), pointers, dtype, kScale, want.data(), dtype, false, numel);
        Buffer& out = pieces[static_cast<size_t>(target)];
        sum_in_order(table(), pointers, dtype, kScale, out.data(), dtype, false, numel);
        ASSERT_TRUE(same(out, want)) << name_of(dtype) << ", piece " << target << " of " << count;
      }
    }
  }
}

void add_twofold(double term, TwofoldSum& to) {
  const double total = to.sum + term, gained = total - to.sum;
  to.rest += (to.sum - (total - gained)) + (term - gained);
  to.sum = total;
}

TEST_P(Sum, SquaresHaveOneAssociation) {
  SeededRandom random(6);
  for (const DType dtype : kAllDtypes) {
    std::vector<int64_t> numels = lengths();
    numels.insert(numels.end(), {255, 256, 257, 5000, 40077});
    for (const int64_t numel : numels) {
      Buffer buffer(dtype, numel, static_cast<int>(random() % 17));
      fill(buffer, random);
      const TwofoldSum got = sum_of_squares(table(), buffer.data(), dtype, numel);
      const TwofoldSum expected = sum_of_squares(*scalar_table(), buffer.data(), dtype, numel);
      ASSERT_EQ(got.sum, expected.sum) << name_of(dtype) << ", numel " << numel;
      ASSERT_EQ(got.rest, expected.rest) << name_of(dtype) << ", numel " << numel;
      long double exact = 0, rest = 0;  // to 2 x 64 bits
      for (int64_t i = 0; i < numel; ++i) {
        const long double square = static_cast<long double>(buffer.get(i)) * buffer.get(i), total = exact + square;
        rest += (exact - (total - (total - exact))) + (square - (total - exact));
        exact = total;
      }
      const long double error = (got.sum - exact) + (got.rest - rest);
      ASSERT_LE(std::abs(error), exact * 0x1p-70L) << name_of(dtype) << ", numel " << numel;
    }
  }
}

// A few elements are looked at first: the others may be larger, by as much as there is, or all zero.
TEST_P(Sum, SquaresOfUnexpectedSizesAreExact) {
  for (const float largest : {1.0f, 8.0f, 1e3f, 1e19f, 3e37f}) {
    for (const float others : {0.0f, 1e-30f, 1.0f}) {
      std::vector<float> values;
      for (int i = 0; i < 5000; ++i) values.push_back(others * (1 + static_cast<float>(i * 7919 % 5000) / 5003));
      values[1000] = largest * 1.1f;
      const TwofoldSum got = sum_of_squares(table(), values.data(), DType::kFloat32, 5000);
      TwofoldSum expected{0, 0};  // squares of floats are exact in double
      for (const float value : values) add_twofold(static_cast<double>(value) * value, expected);
      const long double difference = static_cast<long double>(got.sum) - expected.sum + got.rest - expected.rest;
      EXPECT_NEAR(static_cast<double>(difference / expected.sum), 0, 1e-18) << largest << ", " << others;
    }
  }
}

// Values of many sizes: plain additions give another double for nearly every order.
TEST_P(Sum, SquaresDoNotDependOnOrderAndCut) {
  SeededRandom random(7);
  for (const int64_t numel : {100, 1024, 40000}) {
    std::vector<float> values(static_cast<size_t>(numel));
    std::normal_distribution<float> normal;
    for (float& value : values) value = std::ldexp(normal(random), -static_cast<int>(random() % 16));
    const TwofoldSum whole = sum_of_squares(table(), values.data(), DType::kFloat32, numel);
    for (int repetition = 0; repetition < 20; ++repetition) {
      std::shuffle(values.begin(), values.end(), random);
      const auto cut = static_cast<int64_t>(random() % static_cast<uint64_t>(numel));
      TwofoldSum both = sum_of_squares(table(), values.data(), DType::kFloat32, cut);
      const TwofoldSum right = sum_of_squares(table(), values.data() + cut, DType::kFloat32, numel - cut);
      both.rest += right.rest;
      add_twofold(right.sum, both);
      ASSERT_EQ(both.sum + both.rest, whole.sum + whole.rest) << numel << " cut at " << cut;
    }
  }
}

TEST_P(Sum, SquaresKeepRangeAndShowNonFinite) {
  for (const int64_t numel : {1, 16, 31, 32, 33, 1025}) {
    std::vector<float> values(static_cast<size_t>(numel), 0x1p-149f);
    const auto sum = [&] {
      const TwofoldSum squares = sum_of_squares(table(), values.data(), DType::kFloat32, numel);
      return squares.sum + squares.rest;
    };
    EXPECT_EQ(sum(), static_cast<double>(numel) * 0x1p-298);
    std::fill(values.begin(), values.end(), std::numeric_limits<float>::max());
    EXPECT_TRUE(std::isfinite(sum()));
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      for (const size_t where : {size_t{0}, values.size() / 2, values.size() - 1}) {
        std::fill(values.begin(), values.end(), 1.0f);
        values[where] = bad;
        EXPECT_FALSE(std::isfinite(sum())) << bad << " at " << where << " of " << numel;
      }
    }
  }
  EXPECT_EQ(sum_of_squares(table(), nullptr, DType::kBFloat16, 0).sum, 0.0);
}

TEST_P(Sum, RejectsWhatItCannotDo) {
  float x = 0;
  EXPECT_THROW(pack(table(), &x, DType::kFloat64, &x, DType::kFloat32, 1, 1), ValueError);
  EXPECT_THROW(pack(table(), &x, DType::kFloat32, &x, DType::kOther2, 1, 1), ValueError);
  EXPECT_THROW(pack_add(table(), &x, DType::kFloat32, &x, DType::kFloat32, 1, -1), ValueError);
  EXPECT_THROW(sum_of_squares(table(), &x, DType::kOther4, 1), ValueError);
  EXPECT_THROW(sum_in_order(table(), {}, DType::kFloat32, 1, &x, DType::kFloat32, false, 1), ValueError);
}

}  // namespace
}  // namespace zeroshard::kernels::test

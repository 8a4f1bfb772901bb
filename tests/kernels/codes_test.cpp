// Moments as 8-bit codes: the dynamic map, and one result on every instruction set.
#include <algorithm>
#include <numeric>

#include "kernels/narrow_moments.h"
#include "kernels/optim_reference.h"
#include "kernels/support.h"
#include "layout/shard_layout.h"
#include "zeroshard/error.h"

namespace zeroshard::kernels::test {
namespace {

class Codes : public EachTable {};
ZS_EACH_TABLE(Codes);

// The values of arXiv 2110.02861 in their order: decades with evenly spaced values, 0 and 1.
std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> values{0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int count = is_signed ? 1 << decade : 2 << decade;
    for (int i = 0; i < count; ++i) {
      const double value = std::pow(10.0, decade - 6) * (0.1 + 0.9 * (i + 0.5) / count);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<float> decoded(const KernelTable& table, std::vector<uint8_t> codes, std::vector<float> scales,
                           bool is_signed) {
  std::vector<float> values(codes.size());
  decode(table, {codes.data(), scales.data(), is_signed}, 0, int64_t(codes.size()), values.data());
  return values;
}

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  bool operator==(const Encoded&) const = default;
};

Encoded encoded(const KernelTable& table, const std::vector<float>& values, bool is_signed) {
  Encoded result{std::vector<uint8_t>(values.size()),
                 std::vector<float>((values.size() + kScaledNumel - 1) / kScaledNumel)};
  encode(table, values.data(), int64_t(values.size()), {result.codes.data(), result.scales.data(), is_signed});
  return result;
}

TEST_P(Codes, StandForTheDynamicMap) {
  for (const bool is_signed : {true, false}) {
    const std::vector<double> map = dynamic_map(is_signed);
    ASSERT_EQ(map.size(), 256U);
    std::vector<uint8_t> codes(256);
    std::iota(codes.begin(), codes.end(), uint8_t{0});
    const std::vector<float> values = decoded(table(), codes, {1}, is_signed);
    // 0.9 m - 0.8 loses up to 4 bits where it is near 0.1.
    for (size_t code = 0; code < 256; ++code) EXPECT_NEAR(values[code], map[code], 1e-6 * std::fabs(map[code])) << code;
    EXPECT_EQ(values[255], 1.0f);
    EXPECT_EQ(values[is_signed ? 127 : 0], 0.0f);
  }
}

// Every place between two values, with one as the scale: 0.4 of the way goes back, and 0.6 of it on.
TEST_P(Codes, AreThoseOfTheNearestValue) {
  for (const bool is_signed : {true, false}) {
    const std::vector<double> map = dynamic_map(is_signed);
    for (size_t code = 0; code + 1 < map.size(); ++code) {
      for (const double way : {0.0, 0.4, 0.499, 0.501, 0.6, 1.0}) {
        const auto value = float(map[code] + way * (map[code + 1] - map[code]));
        const Encoded got = encoded(table(), {value, 1.0f}, is_signed);
        EXPECT_EQ(got.codes[0], way < 0.5 ? code : code + 1) << value << (is_signed ? " signed" : "");
        EXPECT_EQ(got.scales[0], 1.0f);
      }
    }
  }
}

// The hashes are of the least magnitude of every code. With other ones a run would not go on with the same bits.
TEST_P(Codes, BeginAtTheSameMagnitudes) {
  for (const bool is_signed : {true, false}) {
    uint32_t low[kScaledNumel], high[kScaledNumel];
    std::fill_n(low, kScaledNumel, std::bit_cast<uint32_t>(0x1p-32f));
    std::fill_n(high, kScaledNumel, std::bit_cast<uint32_t>(1.0f));
    for (int round = 0; round < 32; ++round) {
      float values[kScaledNumel];
      uint8_t codes[kScaledNumel];
      for (size_t i = 0; i < kScaledNumel; ++i) values[i] = std::bit_cast<float>(low[i] + (high[i] - low[i]) / 2);
      table().encode(values, 1.0f, is_signed, codes);
      for (size_t i = 0; i < kScaledNumel; ++i) {
        if (low[i] == high[i]) continue;
        const uint32_t middle = low[i] + (high[i] - low[i]) / 2;
        codes[i] >= i ? high[i] = middle : low[i] = middle + 1;
      }
    }
    uint64_t hash = 0;
    for (const uint32_t bits : low) hash = (hash ^ bits) * 0x100000001b3;
    EXPECT_EQ(hash, is_signed ? 0xf11f4c57a12c6100U : 0x188c84ab5f9c5904U) << (is_signed ? "signed" : "unsigned");
  }
}

std::vector<float> extreme_values(SeededRandom& random, bool is_signed) {
  constexpr float kScales[] = {1, 1e-3f, 3e-20f, 1e-37f, 1e-42f, 1e-45f, 3e30f, 3e38f, 0};
  const auto numel = size_t(1 + random() % 1200);
  std::vector<float> values(numel);
  for (size_t i = 0; i < numel; ++i) {
    if (i % kScaledNumel == 0 && random() % 5 == 0) {  // a block of equal values
      const float value = random.fraction();
      for (; i < numel && (i + 1) % kScaledNumel != 0; ++i) values[i] = is_signed ? value : std::fabs(value);
      continue;
    }
    const float scale = kScales[(i / kScaledNumel + numel) % std::size(kScales)];
    const float value = random.fraction() * std::pow(10.0f, 4 * random.fraction() - 4) * scale;
    values[i] = is_signed ? value : std::fabs(value);
    if (random() % 20 == 0) values[i] = random() % 2 && is_signed ? -0.0f : 0.0f;
  }
  return values;
}

TEST_P(Codes, AreTheSameOnEveryInstructionSet) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    for (const bool is_signed : {true, false}) {
      const std::vector<float> values = extreme_values(random, is_signed);
      const Encoded got = encoded(table(), values, is_signed);
      ASSERT_EQ(got, encoded(*scalar_table(), values, is_signed));
      const std::vector<float> here = decoded(table(), got.codes, got.scales, is_signed);
      const std::vector<float> there = decoded(*scalar_table(), got.codes, got.scales, is_signed);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(here[i]), std::bit_cast<uint32_t>(there[i])) << i;
        ASSERT_TRUE(std::isfinite(here[i])) << values[i];
        // Half of the largest step, 0.9 / 64 of a scale.
        ASSERT_LE(std::fabs(here[i] - values[i]), 0.0072f * got.scales[i / kScaledNumel] + 1e-45f) << values[i];
      }
    }
  }
}

// A checkpoint has decoded values: to load them is to have the values again, bit for bit.
TEST_P(Codes, ComeBackFromTheirValues) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    for (const bool is_signed : {true, false}) {
      std::vector<float> values(1 + random() % 900);
      for (float& value : values) value = (is_signed ? random.fraction() : std::fabs(random.fraction())) * 1e-3f;
      if (is_signed) values[0] = -2e-3f;  // the largest magnitude is no value of the map
      Encoded first{std::vector<uint8_t>(values.size()), {}};
      for (size_t begin = 0; begin < values.size(); begin += kScaledNumel) {
        std::vector<float> block(values.begin() + int64_t(begin),
                                 values.begin() + int64_t(std::min(begin + kScaledNumel, values.size())));
        block.resize(kScaledNumel);
        float most = 0;
        for (const float value : block) most = std::max(most, std::fabs(value));
        uint8_t codes[kScaledNumel];
        table().encode(block.data(), most, is_signed, codes);
        first.scales.push_back(most);
        std::copy_n(codes, std::min(size_t{kScaledNumel}, values.size() - begin), first.codes.begin() + int64_t(begin));
      }
      const std::vector<float> saved = decoded(table(), first.codes, first.scales, is_signed);
      const Encoded loaded = encoded(table(), saved, is_signed);
      ASSERT_EQ(loaded.codes, first.codes);
      ASSERT_EQ(decoded(table(), loaded.codes, loaded.scales, is_signed), saved);
    }
  }
}

TEST_P(Codes, OfAPartOfTheRangeAreDecodedAlone) {
  SeededRandom random(7);
  std::vector<float> values(1000);
  for (float& value : values) value = random.fraction();
  Encoded all = encoded(table(), values, true);
  const std::vector<float> whole = decoded(table(), all.codes, all.scales, true);
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {250, 260}, {256, 512}, {3, 1000}}) {
    std::vector<float> part(size_t(end - begin));
    decode(table(), {all.codes.data(), all.scales.data(), true}, begin, end, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin;
  }
}

// A parameter's states, with moments as codes.
struct CodedState {
  CodedState(int64_t numel, DType grad_dtype, const DType* param_dtype, Random& random)
      : master(DType::kFloat32, numel, int(random() % 16) * 4),
        grad(grad_dtype, numel, int(random() % 17)),
        param(param_dtype ? *param_dtype : DType::kFloat32, numel, int(random() % 17)),
        writes_param(param_dtype != nullptr) {
    fill(master, random);
    for (size_t slot = 0; slot < 2; ++slot) {
      codes[slot].assign(size_t(numel), slot == 0 ? 127 : 0);
      scales[slot].assign(size_t((numel + kScaledNumel - 1) / kScaledNumel), 0);
    }
  }

  StepBuffers buffers(int64_t begin, int64_t end) {
    StepBuffers result{static_cast<float*>(master.at(begin)),
                       grad.at(begin),
                       grad.dtype(),
                       writes_param ? param.at(begin) : nullptr,
                       param.dtype(),
                       0.43f,
                       end - begin};
    result.moment_dtype = DType::kOther1;
    for (size_t slot = 0; slot < 2; ++slot) result.scales[slot] = scales[slot].data() + begin / kScaledNumel;
    return result;
  }
  std::vector<float> moment(size_t slot) {
    return decoded(*scalar_table(), codes[slot], scales[slot], /*is_signed=*/slot == 0);
  }
  void set_moment(size_t slot, const std::vector<float>& values) {
    for (size_t begin = 0; begin < values.size(); begin += kScaledNumel) {
      const size_t count = std::min(size_t{kScaledNumel}, values.size() - begin);
      float block[kScaledNumel] = {}, most = 0;
      for (size_t i = 0; i < count; ++i) most = std::max(most, std::fabs(block[i] = values[begin + i]));
      uint8_t of_block[kScaledNumel];
      scalar_table()->encode(block, most, slot == 0, of_block);
      std::copy_n(of_block, count, codes[slot].begin() + int64_t(begin));
      scales[slot][begin / kScaledNumel] = most;
    }
  }

  Buffer master, grad, param;
  std::vector<uint8_t> codes[2];
  std::vector<float> scales[2];
  bool writes_param;
};

::testing::AssertionResult same_state(const CodedState& got, const CodedState& want) {
  if (auto result = same(got.master, want.master); !result) return result << " (master)";
  if (auto result = same(got.param, want.param); !result) return result << " (param)";
  for (size_t slot = 0; slot < 2; ++slot) {
    if (got.codes[slot] != want.codes[slot]) return ::testing::AssertionFailure() << "codes of moment " << slot;
    if (got.scales[slot] != want.scales[slot]) return ::testing::AssertionFailure() << "scales of moment " << slot;
  }
  return ::testing::AssertionSuccess();
}

// Steps in ranges cut between blocks, against decoded values, the fp32 formulas and a new encoding: every bit.
template <class Args>
void expect_reference_codes(const KernelTable& table, Args args, size_t moments, DType grad_dtype,
                            const DType* param_dtype, int64_t numel, uint64_t seed) {
  SeededRandom random(seed);
  CodedState got(numel, grad_dtype, param_dtype, random);
  CodedState want = got;
  for (int64_t step = 1; step <= 4; ++step) {
    set_step(args, step);
    fill(got.grad, random);
    want.grad = got.grad;
    for (int64_t begin = 0; begin < numel;) {
      const int64_t end = std::min(numel, begin + kScaledNumel * int64_t(1 + random() % 3));
      apply(table, got.buffers(begin, end), got.codes[0].data() + begin, got.codes[1].data() + begin, args);
      begin = end;
    }
    std::vector<float> states[] = {want.moment(0), want.moment(1)};
    for (int64_t i = 0; i < numel; ++i) {
      Element e{want.master.get(i), states[0][size_t(i)], states[1][size_t(i)]};
      reference(e, want.grad.get(i) * 0.43f, args);
      want.master.set(i, e.weight);
      states[0][size_t(i)] = e.state1;
      states[1][size_t(i)] = e.state2;
      if (want.writes_param) want.param.set(i, e.weight);
    }
    for (size_t slot = 0; slot < moments; ++slot) want.set_moment(slot, states[slot]);
    ASSERT_TRUE(same_state(got, want)) << "step " << step << ", numel " << numel << ", grad " << name_of(grad_dtype)
                                       << ", param " << (param_dtype ? name_of(*param_dtype) : "none");
  }
}

template <class Args>
void expect_right_codes(const KernelTable& table, const Args& args, size_t moments = 1) {
  uint64_t seed = 1;
  for (const DType grad : kAllDtypes) {
    expect_reference_codes(table, args, moments, grad, nullptr, numel_of(300), seed++);
    for (const DType& param : kAllDtypes)
      expect_reference_codes(table, args, moments, grad, &param, numel_of(517), seed++);
  }
  const DType param = DType::kBFloat16;
  for (const int64_t numel : lengths()) {
    expect_reference_codes(table, args, moments, DType::kBFloat16, &param, numel, seed++);
    if (::testing::Test::HasFatalFailure()) return;
  }
  expect_reference_codes(table, args, moments, DType::kFloat32, &param, (1 << 16) + 4099, seed);  // streams
}

TEST_P(Codes, OfAdamHaveTheBitsOfTheReference) {
  expect_right_codes(table(), AdamArgs{.lr = 1e-2, .weight_decay = 0.1}, 2);
}
TEST_P(Codes, OfSgdHaveTheBitsOfTheReference) {
  expect_right_codes(table(), SgdArgs{.lr = 1e-2, .momentum = 0.9, .dampening = 0.1});
}
TEST_P(Codes, OfLionHaveTheBitsOfTheReference) {
  expect_right_codes(table(), LionArgs{.weight_decay = 0.1});
}
TEST_P(Codes, OfAdagradHaveTheBitsOfTheReference) {
  expect_right_codes(table(), AdagradArgs{.lr_decay = 0.1});
}

// The square of 1e25 is infinite in fp32. The block gets a finite scale, so the other elements stay numbers.
TEST_P(Codes, OfAMomentThatOverflowsStayFinite) {
  SeededRandom random(3);
  CodedState state(3 * kScaledNumel, DType::kFloat32, nullptr, random);
  for (int64_t step = 1; step <= 3; ++step) {
    fill(state.grad, random);
    state.grad.set(300, step == 1 ? 1e25f : 0.5f);
    apply(table(), state.buffers(0, 3 * kScaledNumel), state.codes[0].data(), state.codes[1].data(),
          AdamArgs{.lr = 1e-2, .step = step});
    for (int64_t i = 0; i < 3 * kScaledNumel; ++i) {
      ASSERT_TRUE(std::isfinite(state.master.get(i))) << i << ", step " << step;
      ASSERT_TRUE(std::isfinite(state.moment(1)[size_t(i)])) << i;
    }
  }
  EXPECT_GT(state.moment(1)[300], 1e38f);
}

TEST_P(Codes, OfMomentsThatAreUnusedAreZeroWithoutASign) {
  for (const bool is_signed : {true, false})
    for (const float value : decoded(table(), std::vector<uint8_t>(300, 0), {0, 0}, is_signed))
      EXPECT_EQ(std::bit_cast<uint32_t>(value), 0U);
}

}  // namespace
}  // namespace zeroshard::kernels::test

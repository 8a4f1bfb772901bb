// Moments in bf16: rounded at random, by numbers that depend on key and element alone.
#include <algorithm>

#include "kernels/half.h"
#include "kernels/narrow_moments.h"
#include "kernels/optim_reference.h"
#include "kernels/support.h"
#include "zeroshard/error.h"

namespace zeroshard::kernels::test {
namespace {

class Moments : public EachTable {};
ZS_EACH_TABLE(Moments);

// The formulas of StepBuffers::random, written apart from the kernels.
uint32_t expected_bits(uint64_t key, int64_t element) {
  uint32_t x = uint32_t(uint64_t(element) + key);
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x ^= uint32_t(key >> 32);
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Of 65536 equally likely draws, as many go up as the value has of the way to the next bf16.
float expected_rounding(float value, uint32_t draw) {
  if (std::isnan(value)) return std::numeric_limits<float>::quiet_NaN();
  if (std::isinf(value)) return value;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t part = bits & 0xffffu, down = bits & 0xffff0000u;
  const bool is_largest = (down & 0x7fffffffu) == 0x7f7f0000u;
  return std::bit_cast<float>(part + draw >= 0x10000u && !is_largest ? down + 0x10000u : down);
}

TEST(RoundAtRandom, GoesUpAsOftenAsTheValueIsNearTheNextOne) {
  for (const uint64_t seed : seeds(3)) {
    SeededRandom random(seed);
    for (int i = 0; i < 30; ++i) {
      const float value = random_value(random, /*non_finite=*/true);
      uint32_t ups = 0;
      const float down = expected_rounding(value, 0);
      for (uint32_t draw = 0; draw < 0x10000u; ++draw) {
        const float got = to_float(round_at_random(value, draw));
        ASSERT_TRUE(same_float(got, expected_rounding(value, draw))) << value << " by " << draw;
        ASSERT_EQ(std::isfinite(got), std::isfinite(value)) << value << " by " << draw;
        if (!std::isnan(value)) {
          ASSERT_EQ(std::signbit(got), std::signbit(value)) << value << " by " << draw;
        }
        ups += got != down && !std::isnan(value);
      }
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      const bool may_grow = (bits & 0x7fffffffu) < 0x7f7f0000u;
      ASSERT_EQ(ups, may_grow ? bits & 0xffffu : 0) << value;
    }
  }
}

TEST(RoundAtRandom, KeepsWhatHasNoPlaceToGo) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kMax = std::numeric_limits<float>::max();
  for (const uint32_t draw : {0u, 1u, 0x8000u, 0xffffu}) {
    EXPECT_EQ(round_at_random(0.0f, draw).bits, 0);
    EXPECT_EQ(round_at_random(-0.0f, draw).bits, 0x8000);
    EXPECT_EQ(round_at_random(kInf, draw).bits, 0x7f80);
    EXPECT_EQ(round_at_random(-kInf, draw).bits, 0xff80);
    EXPECT_EQ(round_at_random(std::numeric_limits<float>::quiet_NaN(), draw).bits, kBf16NaN);
    EXPECT_EQ(round_at_random(std::bit_cast<float>(0xffffffffu), draw).bits, kBf16NaN);
    EXPECT_EQ(round_at_random(kMax, draw).bits, 0x7f7f);
    EXPECT_EQ(round_at_random(-kMax, draw).bits, 0xff7f);
    EXPECT_EQ(round_at_random(1.5f, draw).bits, 0x3fc0);
  }
  EXPECT_EQ(round_at_random(std::numeric_limits<float>::denorm_min(), 0xffffu).bits, 1);
}

struct MomentState {
  MomentState(int64_t numel, DType grad_dtype, const DType* param_dtype, Random& random)
      : master(DType::kFloat32, numel, int(random() % 16) * 4),
        state1(DType::kBFloat16, numel, int(random() % 17)),
        state2(DType::kBFloat16, numel, int(random() % 17)),
        grad(grad_dtype, numel, int(random() % 17)),
        param(param_dtype ? *param_dtype : DType::kFloat32, numel, int(random() % 17)),
        writes_param(param_dtype != nullptr) {
    fill(master, random);
  }

  StepBuffers buffers(int64_t begin, int64_t end, RandomBits bits) {
    StepBuffers result{static_cast<float*>(master.at(begin)),
                       grad.at(begin),
                       grad.dtype(),
                       writes_param ? param.at(begin) : nullptr,
                       param.dtype(),
                       0.43f,
                       end - begin};
    result.moment_dtype = DType::kBFloat16;
    result.random = {bits.key, bits.first_element + begin};
    return result;
  }

  Buffer master, state1, state2, grad, param;
  bool writes_param;
};

::testing::AssertionResult same_state(const MomentState& got, const MomentState& want) {
  if (auto result = same(got.master, want.master); !result) return result << " (master)";
  if (auto result = same(got.state1, want.state1); !result) return result << " (state 1)";
  if (auto result = same(got.state2, want.state2); !result) return result << " (state 2)";
  if (auto result = same(got.param, want.param); !result) return result << " (param)";
  return ::testing::AssertionSuccess();
}

// Steps in ranges cut at random places, against the fp32 formulas and a rounding of one element at a time: every bit.
template <class Args>
void expect_reference_moments(const KernelTable& table, Args args, DType grad_dtype, const DType* param_dtype,
                              int64_t numel, uint64_t seed) {
  SeededRandom random(seed);
  MomentState got(numel, grad_dtype, param_dtype, random);
  MomentState want = got;
  const int64_t first = int64_t(random() >> 30);  // often beyond 32 bits
  for (int64_t step = 1; step <= 3; ++step) {
    set_step(args, step);
    fill(got.grad, random);
    want.grad = got.grad;
    const RandomBits bits{random_key(seed, step), first};
    const auto cuts = random_cuts(numel, random);
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      apply(table, got.buffers(cuts[i], cuts[i + 1], bits), got.state1.at(cuts[i]), got.state2.at(cuts[i]), args);
    for (int64_t i = 0; i < numel; ++i) {
      Element e{want.master.get(i), want.state1.get(i), want.state2.get(i)};
      reference(e, want.grad.get(i) * 0.43f, args);
      const uint32_t draw = expected_bits(bits.key, first + i);
      want.master.set(i, e.weight);
      want.state1.set(i, expected_rounding(e.state1, draw & 0xffffu));
      want.state2.set(i, expected_rounding(e.state2, draw >> 16));
      if (want.writes_param) want.param.set(i, e.weight);
    }
    ASSERT_TRUE(same_state(got, want)) << "step " << step << ", numel " << numel << ", grad " << name_of(grad_dtype)
                                       << ", param " << (param_dtype ? name_of(*param_dtype) : "none") << ", seed "
                                       << seed;
  }
}

template <class Args>
void expect_right(const KernelTable& table, const Args& args) {
  uint64_t seed = 1;
  for (const DType grad : kAllDtypes) {
    expect_reference_moments(table, args, grad, nullptr, 53, seed++);
    for (const DType& param : kAllDtypes) expect_reference_moments(table, args, grad, &param, 53, seed++);
  }
  const DType param = DType::kBFloat16;
  for (const int64_t numel : lengths()) {
    expect_reference_moments(table, args, DType::kBFloat16, &param, numel, seed++);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(Moments, OfAdamHaveTheBitsOfTheReference) {
  expect_right(table(), AdamArgs{.lr = 1e-2, .weight_decay = 0.1});
}
TEST_P(Moments, OfSgdHaveTheBitsOfTheReference) {
  expect_right(table(), SgdArgs{.lr = 1e-2, .momentum = 0.9, .dampening = 0.1});
}
TEST_P(Moments, OfLionHaveTheBitsOfTheReference) {
  expect_right(table(), LionArgs{.weight_decay = 0.1});
}
TEST_P(Moments, OfAdagradHaveTheBitsOfTheReference) {
  expect_right(table(), AdagradArgs{.lr_decay = 0.1});
}

// Infinities, NaNs, subnormals and the largest numbers, and ranges that stream: as the scalar kernels.
TEST_P(Moments, DoNotDependOnSplitOrInstructionSet) {
  const DType param = DType::kBFloat16;
  for (const uint64_t seed : seeds(20)) {
    SeededRandom random(seed);
    const int64_t numel = seed % 10 == 0 ? (1 << 16) + 37 : int64_t(random() % 3000);
    MomentState whole(numel, DType::kFloat32, &param, random);
    fill(whole.master, random, true);
    fill(whole.grad, random, true);
    for (int64_t i = 0; i < numel; ++i) {
      whole.state1.set(i, random_value(random, true));
      whole.state2.set(i, std::fabs(random_value(random, true)));
    }
    MomentState split = whole;
    const RandomBits bits{random(), int64_t(random() % 1000)};
    const auto cuts = random_cuts(numel, random);
    const auto run = [&](const auto& args) {
      apply(*scalar_table(), whole.buffers(0, numel, bits), whole.state1.data(), whole.state2.data(), args);
      for (size_t i = 0; i + 1 < cuts.size(); ++i)
        apply(table(), split.buffers(cuts[i], cuts[i + 1], bits), split.state1.at(cuts[i]), split.state2.at(cuts[i]),
              args);
      return same_state(split, whole);
    };
    ASSERT_TRUE(run(AdamArgs{.weight_decay = 0.01, .step = 7})) << "adam";
    ASSERT_TRUE(run(SgdArgs{.momentum = 0.9})) << "sgd";
    ASSERT_TRUE(run(LionArgs{})) << "lion";
    ASSERT_TRUE(run(AdagradArgs{.step = 3})) << "adagrad";
  }
}

// Without gradients the second moment shrinks by 0.001 of it a step: less than half an ulp, so that rounding to nearest
// would keep it for ever. The mean over all elements is that of fp32; one element strays by some 12 %, so their mean by
// 0.2 %.
TEST_P(Moments, DecayAsFp32Does) {
  const int64_t numel = numel_of(4096);
  constexpr int64_t kSteps = 1000;
  for (const uint64_t seed : seeds(2)) {
    SeededRandom random(seed);
    MomentState state(numel, DType::kFloat32, nullptr, random);
    for (int64_t i = 0; i < numel; ++i) state.state2.set(i, 3.5f);
    for (int64_t step = 1; step <= kSteps; ++step)
      adam(table(), state.buffers(0, numel, {random_key(seed, step), 0}), state.state1.data(), state.state2.data(),
           {.step = step});
    double sum = 0;
    for (int64_t i = 0; i < numel; ++i) sum += state.state2.get(i);
    const double expected = 3.5 * std::pow(0.999, kSteps);
    EXPECT_NEAR(sum / double(numel), expected, 0.01 * expected);
  }
}

// Of every pair of neighbours, steps, parameters and moments: whether both go up is as likely as for independent draws.
TEST_P(Moments, DrawsAreIndependent) {
  const int64_t numel = numel_of(1 << 14);
  constexpr double kUp = 0.3;
  const float value = 1 + float(kUp) / 128;  // bf16 has 1 and 1 + 1/128
  const uint64_t parameter = 12345;
  // Adam's first step from zero with these betas stores `value` in both moments.
  const auto ups = [&](uint64_t of, int64_t step, bool second) {
    SeededRandom random(1);
    MomentState state(numel, DType::kFloat32, nullptr, random);
    for (int64_t i = 0; i < numel; ++i) state.grad.set(i, second ? std::sqrt(value) / 0.43f : value / 0.43f);
    adam(table(), state.buffers(0, numel, {random_key(of, step), 0}), state.state1.data(), state.state2.data(),
         {.beta1 = 0, .beta2 = 0});
    std::vector<bool> result;
    for (int64_t i = 0; i < numel; ++i) result.push_back((second ? state.state2 : state.state1).get(i) > 1);
    return result;
  };
  const auto share = [](const auto& a, const auto& b, size_t moved) {
    double both = 0;
    for (size_t i = 0; i < a.size(); ++i) both += a[i] && b[(i + moved) % b.size()];
    return both / double(a.size());
  };
  constexpr double kFiveSigma = 5 * 0.46 / 128;  // of a share of 0.3 of 2^14 draws; that of pairs varies less
  const auto own = ups(parameter, 7, false);
  EXPECT_NEAR(share(own, own, 0), kUp, kFiveSigma);
  for (const size_t moved : {1, 2, 16, 1000}) EXPECT_NEAR(share(own, own, moved), kUp * kUp, kFiveSigma) << moved;
  for (const auto& other : {ups(parameter, 8, false), ups(parameter, 9, false), ups(parameter + 1, 7, false),
                            ups(parameter, 7, true), ups(~parameter, 7, true)}) {
    EXPECT_NEAR(share(other, other, 0), kUp, kFiveSigma);
    for (const size_t moved : {0, 1, 2}) EXPECT_NEAR(share(own, other, moved), kUp * kUp, kFiveSigma) << moved;
  }
  double later = 0;  // one element over many steps
  for (int64_t step = 1; step <= 4096; ++step)
    later += (expected_bits(random_key(parameter, step), 5) & 0xffffu) < 19661;
  EXPECT_NEAR(later / 4096, kUp, 5 * 0.46 / 64);
}

TEST_P(Moments, HaveOneOfTwoDtypes) {
  SeededRandom random(1);
  MomentState state(numel_of(4), DType::kFloat32, nullptr, random);
  StepBuffers buffers = state.buffers(0, 4, {});
  buffers.moment_dtype = DType::kFloat16;
  EXPECT_THROW(adam(table(), buffers, state.state1.data(), state.state2.data(), {}), ValueError);
}

}  // namespace
}  // namespace zeroshard::kernels::test

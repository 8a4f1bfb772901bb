#include "kernels/optim_reference.h"
#include "kernels/support.h"
#include "zeroshard/error.h"

namespace zeroshard::kernels::test {
namespace {

class Optim : public EachTable {};
ZS_EACH_TABLE(Optim);

// The weights, states, gradient and low-precision copy of one run. `param` is null without a copy.
struct State {
  State(int64_t numel, DType grad_dtype, const DType* param_dtype, Random& random)
      : master(DType::kFloat32, numel, static_cast<int>(random() % 16) * 4),
        state1(DType::kFloat32, numel, static_cast<int>(random() % 16) * 4),
        state2(DType::kFloat32, numel, static_cast<int>(random() % 16) * 4),
        grad(grad_dtype, numel, static_cast<int>(random() % 17)),
        param(param_dtype == nullptr ? DType::kFloat32 : *param_dtype, numel, static_cast<int>(random() % 17)),
        writes_param(param_dtype != nullptr) {
    fill(master, random);
    fill(grad, random);
  }

  // Buffers over the elements [begin, end).
  StepBuffers buffers(int64_t begin, int64_t end, float grad_scale) {
    return {static_cast<float*>(master.at(begin)),
            grad.at(begin),
            grad.dtype(),
            writes_param ? param.at(begin) : nullptr,
            param.dtype(),
            grad_scale,
            end - begin};
  }
  float* first(int64_t begin) { return static_cast<float*>(state1.at(begin)); }
  float* second(int64_t begin) { return static_cast<float*>(state2.at(begin)); }

  Buffer master, state1, state2, grad, param;
  bool writes_param;
};

void apply(const KernelTable& table, State& s, int64_t begin, int64_t end, float scale, const AdamArgs& args) {
  adam(table, s.buffers(begin, end, scale), s.first(begin), s.second(begin), args);
}
void apply(const KernelTable& table, State& s, int64_t begin, int64_t end, float scale, const SgdArgs& args) {
  sgd(table, s.buffers(begin, end, scale), args.momentum != 0 ? s.first(begin) : nullptr, args);
}
void apply(const KernelTable& table, State& s, int64_t begin, int64_t end, float scale, const LionArgs& args) {
  lion(table, s.buffers(begin, end, scale), s.first(begin), args);
}
void apply(const KernelTable& table, State& s, int64_t begin, int64_t end, float scale, const AdagradArgs& args) {
  adagrad(table, s.buffers(begin, end, scale), s.first(begin), args);
}

::testing::AssertionResult same_state(const State& got, const State& want) {
  if (auto result = same(got.master, want.master); !result) return result << " (master)";
  if (auto result = same(got.state1, want.state1); !result) return result << " (state 1)";
  if (auto result = same(got.state2, want.state2); !result) return result << " (state 2)";
  if (auto result = same(got.grad, want.grad); !result) return result << " (grad)";
  if (auto result = same(got.param, want.param); !result) return result << " (param)";
  return ::testing::AssertionSuccess();
}

constexpr float kGradScale = 0.43f;

// Three steps, each in ranges cut at random places, against the fp32 reference: every bit.
template <class Args>
void expect_reference_bits(const KernelTable& table, Args args, DType grad_dtype, const DType* param_dtype,
                           int64_t numel, uint64_t seed) {
  SeededRandom random(seed);
  State got(numel, grad_dtype, param_dtype, random);
  State want = got;
  for (int64_t step = 1; step <= 3; ++step) {
    set_step(args, step);
    fill(got.grad, random);
    want.grad = got.grad;
    const auto cuts = random_cuts(numel, random);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) apply(table, got, cuts[i], cuts[i + 1], kGradScale, args);
    for (int64_t i = 0; i < numel; ++i) {
      Element e{want.master.get(i), want.state1.get(i), want.state2.get(i)};
      reference(e, want.grad.get(i) * kGradScale, args);
      want.master.set(i, e.weight);
      want.state1.set(i, e.state1);
      want.state2.set(i, e.state2);
      if (want.writes_param) want.param.set(i, e.weight);
    }
    ASSERT_TRUE(same_state(got, want)) << "step " << step << ", numel " << numel << ", grad " << name_of(grad_dtype)
                                       << ", param " << (param_dtype ? name_of(*param_dtype) : "none") << ", seed "
                                       << seed;
  }
}

// Fifty steps against fp64, relative to how far the weights are from zero or have moved.
template <class Args>
void expect_close_to_fp64(const KernelTable& table, Args args, double tolerance) {
  const int64_t numel = 333;
  SeededRandom random(99);
  State s(numel, DType::kFloat32, nullptr, random);
  std::vector<Element64> want;
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < numel; ++i) {
    s.master.set(i, normal(random));
    want.push_back({s.master.get(i)});
  }
  for (int64_t step = 1; step <= 50; ++step) {
    set_step(args, step);
    for (int64_t i = 0; i < numel; ++i) s.grad.set(i, normal(random));
    apply(table, s, 0, numel, 0.5f, args);
    for (int64_t i = 0; i < numel; ++i) reference(want[static_cast<size_t>(i)], 0.5 * s.grad.get(i), args);
  }
  for (int64_t i = 0; i < numel; ++i) {
    const double weight = want[static_cast<size_t>(i)].weight;
    ASSERT_NEAR(s.master.get(i), weight, tolerance * std::max(1.0, std::fabs(weight))) << "element " << i;
  }
}

template <class Args>
void expect_right(const KernelTable& table, const std::vector<Args>& variants, double tolerance) {
  uint64_t seed = 1;
  for (const Args& args : variants) {
    expect_close_to_fp64(table, args, tolerance);
    for (const DType grad : kAllDtypes) {
      expect_reference_bits(table, args, grad, nullptr, 53, seed++);
      for (const DType& param : kAllDtypes) expect_reference_bits(table, args, grad, &param, 53, seed++);
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  const DType param = DType::kBFloat16;
  for (const int64_t numel : lengths()) {
    expect_reference_bits(table, variants.back(), DType::kFloat32, &param, numel, seed++);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// In each of 50 steps fp32 rounds a weight, what decays it and what it moves by: half an ulp each, 6e-8 near 1.
constexpr double kTolerance = 1e-5;

TEST_P(Optim, Adam) {
  AdamArgs plain, decoupled{.lr = 1e-2, .weight_decay = 0.1}, coupled = decoupled, late = decoupled;
  coupled.decoupled_weight_decay = false;
  late.beta1 = 0.3;  // torch.lerp's other branch
  late.beta2 = 0.95;
  late.bias_correction = false;
  late.maximize = true;
  expect_right<AdamArgs>(table(), {plain, coupled, late, decoupled}, kTolerance);
}

TEST_P(Optim, Sgd) {
  SgdArgs plain, momentum{.lr = 1e-2, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1}, nesterov = momentum;
  nesterov.dampening = 0;
  nesterov.nesterov = true;
  nesterov.maximize = true;
  expect_right<SgdArgs>(table(), {plain, nesterov, momentum}, kTolerance);
}

TEST_P(Optim, Lion) {
  LionArgs plain, decay{.lr = 1e-3, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.5};
  expect_right<LionArgs>(table(), {plain, decay}, kTolerance);
}

TEST_P(Optim, Adagrad) {
  AdagradArgs plain, decay{.lr = 1e-2, .lr_decay = 0.1, .weight_decay = 0.1, .eps = 1e-6, .maximize = true};
  expect_right<AdagradArgs>(table(), {plain, decay}, kTolerance);
}

// All instruction sets and all ways to split, on subnormals, infinities and NaNs too.
TEST_P(Optim, BitsDoNotDependOnSplitOrInstructionSet) {
  const DType param = DType::kFloat16;
  for (const uint64_t seed : seeds(20)) {
    SeededRandom random(seed);
    const int64_t numel = static_cast<int64_t>(random() % 3000);
    State whole(numel, seed % 2 == 0 ? DType::kBFloat16 : DType::kFloat32, &param, random);
    fill(whole.master, random, true);
    fill(whole.grad, random, true);
    for (int64_t i = 0; i < numel; ++i) {
      whole.state1.set(i, random_value(random, true));
      whole.state2.set(i, std::fabs(random_value(random, true)));
    }
    State split = whole;
    const auto cuts = random_cuts(numel, random);
    const auto run = [&](const auto& args) {
      apply(*scalar_table(), whole, 0, numel, kGradScale, args);
      for (size_t i = 0; i + 1 < cuts.size(); ++i) apply(table(), split, cuts[i], cuts[i + 1], kGradScale, args);
      return same_state(split, whole);
    };
    AdamArgs adam_args{.weight_decay = 0.01, .step = 7};
    SgdArgs sgd_args{.momentum = 0.9, .weight_decay = 0.01};
    ASSERT_TRUE(run(adam_args)) << "adam";
    ASSERT_TRUE(run(sgd_args)) << "sgd";
    ASSERT_TRUE(run(LionArgs{.weight_decay = 0.01})) << "lion";
    ASSERT_TRUE(run(AdagradArgs{.weight_decay = 0.01, .step = 3})) << "adagrad";
  }
}

// Ranges larger than a core's caches write `param` past them when it is aligned: same bits, nothing around it touched.
TEST_P(Optim, LargeRangesStreamTheSameBits) {
  const int64_t numel = (1 << 16) + 37;
  for (const DType& param : kAllDtypes) {
    SeededRandom random(11);
    State small(numel, DType::kBFloat16, &param, random);
    fill(small.master, random);
    for (const size_t misalignment : {0, 2}) {
      State large = small;
      // An address aligned to 64 bytes, or just not.
      std::vector<uint8_t> space(static_cast<size_t>(numel * 4) + 256, 0xa5);
      const size_t begin = 64 - reinterpret_cast<uintptr_t>(space.data()) % 64 + misalignment;
      State want = small;
      apply(*scalar_table(), want, 0, 1000, kGradScale, AdamArgs{});
      apply(*scalar_table(), want, 1000, numel, kGradScale, AdamArgs{});
      StepBuffers buffers = large.buffers(0, numel, kGradScale);
      buffers.param = space.data() + begin;
      adam(table(), buffers, large.first(0), large.second(0), AdamArgs{});
      const size_t bytes = static_cast<size_t>(numel * element_size(param));
      ASSERT_EQ(std::memcmp(space.data() + begin, want.param.data(), bytes), 0) << name_of(param) << misalignment;
      for (size_t i = 0; i < space.size(); ++i) {
        const bool outside = i < begin || i >= begin + bytes;
        ASSERT_TRUE(!outside || space[i] == 0xa5) << name_of(param) << " byte " << i;
      }
      ASSERT_TRUE(same(large.master, want.master));
    }
  }
}

TEST_P(Optim, ParamIsTheMasterRoundedOnce) {
  // 1 + 2^-8 + 2^-23 is above a bf16 tie; a detour through fp16 gives the tie, and then the even neighbour 1.
  float master = 1 + 0x1p-8f + 0x1p-23f, grad = 0, exp_avg = 0, exp_avg_sq = 0;
  uint16_t param = 0;
  const StepBuffers buffers{&master, &grad, DType::kFloat32, &param, DType::kBFloat16, 1, 1};
  adam(table(), buffers, &exp_avg, &exp_avg_sq, {});
  EXPECT_EQ(master, 1 + 0x1p-8f + 0x1p-23f);
  EXPECT_EQ(param, 0x3f81);
}

TEST_P(Optim, RejectsWhatItCannotDo) {
  float x = 0, state = 0;
  StepBuffers buffers{&x, &x, DType::kFloat32, nullptr, DType::kBFloat16, 1, 1};
  EXPECT_THROW(adam(table(), buffers, &state, &state, {.step = 0}), ValueError);
  EXPECT_THROW(adagrad(table(), buffers, &state, {.step = 0}), ValueError);
  EXPECT_THROW(sgd(table(), buffers, nullptr, {.momentum = 0.9}), ValueError);
  EXPECT_THROW(sgd(table(), buffers, &state, {}), ValueError);
  EXPECT_THROW(sgd(table(), buffers, nullptr, {.nesterov = true}), ValueError);
  EXPECT_THROW(sgd(table(), buffers, &state, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), ValueError);
  buffers.grad_dtype = DType::kFloat64;
  EXPECT_THROW(lion(table(), buffers, &state, {}), ValueError);
  buffers.grad_dtype = DType::kFloat32;
  buffers.numel = -1;
  EXPECT_THROW(lion(table(), buffers, &state, {}), ValueError);
}

}  // namespace
}  // namespace zeroshard::kernels::test

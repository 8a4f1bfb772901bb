#include <gmock/gmock.h>

#include <map>

#include "base/format.h"
#include "file/support.h"
#include "layout/shard_layout.h"
#include "world/support.h"

// Moments in bf16 and in 8 bits: the same bits wherever they lie and however they are cut, in the planned memory.
namespace zeroshard::test {
namespace {

using testing::TemporaryDirectory;

Scenario narrow(Scenario scenario, DType moments) {
  scenario.config.moment_dtype = moments;
  return scenario;
}

Scenario in_files(Scenario scenario, const TemporaryDirectory& directory, double ratio) {
  scenario.config.offload_optimizer = {.device = OffloadOptimizerConfig::Device::kNvme,
                                       .ratio = ratio,
                                       .nvme_path = {directory.path()},
                                       .buffer_count = 2};
  return scenario;
}

Scenario on_host(Scenario scenario) {
  scenario.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  return scenario;
}

// On all tiers; each as planned.
int64_t measured(const Result& result, const std::string& category) {
  int64_t bytes = 0;
  for (const MemoryLine& line : result.memory) {
    if (line.category != category) continue;
    EXPECT_EQ(line.measured_peak, line.planned) << category << " on " << line.tier;
    bytes += line.measured_peak;
  }
  return bytes;
}

void expect_the_same(const Result& expected, const Scenario& scenario) {
  const Result result = train(scenario);
  ASSERT_FALSE(::testing::Test::HasFailure()) << scenario.text();
  EXPECT_TRUE(result.values.equal(expected.values)) << scenario.text();
  EXPECT_EQ(measured(result, "moments"), measured(expected, "moments")) << scenario.text();
  EXPECT_EQ(measured(result, "master weights"), measured(expected, "master weights")) << scenario.text();
  measured(result, "swap buffers");
}

class NarrowMoments : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  DType moments() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, NarrowMoments,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values(DType::kBFloat16, kCodes)),
                         [](const auto& test) {
                           const bool is_coded = std::get<1>(test.param) == kCodes;
                           return concat(std::get<0>(test.param), is_coded ? "Codes" : "Bf16");
                         });

Scenario make_narrow(int world_size, int stage, DType moments, DType dtype, int64_t accumulation) {
  Scenario scenario = narrow(make_scenario(world_size, stage), moments);
  scenario.config.compute_dtype = dtype;
  scenario.config.grad_accumulation_steps = accumulation;
  scenario.model.frozen = accumulation == 3;
  scenario.model.ballast = 20'000;
  scenario.model.uneven_ballast = true;
  scenario.steps = 3;
  if (dtype == DType::kFloat16) {
    scenario.config.fp16.enabled = true;
    scenario.config.fp16.initial_scale_power = 4;
    scenario.steps = 4;
    scenario.input_scale = [](int, int step) { return step == 1 ? 1e6F : 1.F; };  // a step is skipped
  }
  return scenario;
}

// Stage 0 updates all on each rank: its moments are whole, and its values those of every stage and tier.
TEST_P(NarrowMoments, HaveTheSameBitsInEveryStageAndTierInThePlannedMemory) {
  const TemporaryDirectory directory;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t accumulation : {1, 3}) {
      const Result whole = train(make_narrow(ranks(), 0, moments(), dtype, accumulation));
      for (const int stage : {1, 2, 3}) {
        const Scenario scenario = make_narrow(ranks(), stage, moments(), dtype, accumulation);
        const Result expected = train(scenario);
        ASSERT_FALSE(HasFailure()) << scenario.text();
        EXPECT_TRUE(expected.values.equal(whole.values)) << scenario.text();
        expect_the_same(expected, on_host(scenario));
        for (const double ratio : {0.4, 1.0}) expect_the_same(expected, in_files(scenario, directory, ratio));
        Scenario wide = scenario;
        wide.config.moment_dtype = DType::kFloat32;
        const Result other = train(wide);
        const int64_t own = measured(expected, "moments"), of_other = measured(other, "moments");
        if (moments() == kCodes) {  // small parameters keep fp32, and have padding of their own
          EXPECT_LT(2 * own, of_other) << scenario.text();
        } else {
          EXPECT_EQ(2 * own, of_other) << scenario.text();
          EXPECT_EQ(measured(expected, "master weights"), measured(other, "master weights"));
        }
        // In 16 bits the few steps of large parameters may round to the same values.
        if (moments() != kCodes || dtype == DType::kFloat32) {
          EXPECT_FALSE(expected.values.equal(other.values)) << scenario.text();
        }
      }
    }
  }
}

TEST_P(NarrowMoments, OfEveryOptimizerHaveTheSameBitsInFiles) {
  const TemporaryDirectory directory;
  using Type = OptimizerConfig::Type;
  for (const Type type : {Type::kAdam, Type::kSgd, Type::kLion, Type::kAdagrad}) {
    Scenario scenario = make_narrow(ranks(), 2, moments(), DType::kBFloat16, 1);
    scenario.config.optimizer->type = type;
    if (type == Type::kSgd) scenario.config.optimizer->momentum = 0.9;
    expect_the_same(train(scenario), in_files(scenario, directory, 1));
  }
}

// A unit of several chunks, whose loans begin anew within parameters.
TEST(NarrowMomentsOfLargeUnits, HaveTheSameBitsInFiles) {
  const TemporaryDirectory directory;
  for (const DType moments : {DType::kBFloat16, kCodes}) {
    Scenario scenario = make_narrow(1, 2, moments, DType::kBFloat16, 1);
    scenario.model.ballast = (int64_t{1} << 20) + 300'000;
    scenario.steps = 2;
    const Result expected = train(scenario);
    for (const double ratio : {0.9, 1.0}) expect_the_same(expected, in_files(scenario, directory, ratio));
  }
}

// The mean loss of the last steps of a longer run: near that with moments in fp32. The runs differ as two seeds do.
TEST(NarrowMomentsOfLongRuns, TrainAsWellAsInFp32) {
  const auto last_losses = [](const Scenario& scenario) {
    constexpr int kSteps = 300, kLast = 100;
    double sum = 0, first = 0;
    ThreadWorld world(scenario);
    const auto errors = world.run([&](Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      for (int step = 0; step < kSteps; ++step) {
        rank.engine->begin_forward(/*training=*/true);
        const at::Tensor loss = loss_of(rank.model, scenario, 0, step % 4, 0, rank.engine.get());
        if (step == 0) first = loss.item<double>();
        if (step >= kSteps - kLast) sum += loss.item<double>();
        rank.engine->backward(loss);
        rank.engine->step();
      }
    });
    EXPECT_THAT(errors, ::testing::Each(""));
    return std::pair(first, sum / kLast);
  };
  Scenario scenario = make_scenario(1, 2);
  scenario.config.optimizer->lr = 0.003;
  const auto [first, wide] = last_losses(scenario);
  EXPECT_LT(wide, 0.5 * first);
  EXPECT_NEAR(last_losses(narrow(scenario, DType::kBFloat16)).second, wide, 0.1 * wide);
}

}  // namespace
}  // namespace zeroshard::test

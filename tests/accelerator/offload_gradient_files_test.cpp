// Engines on simulated devices whose reduced gradients go to files, through the host.
#include <gmock/gmock.h>

#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

class GradientFileOffload : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/11); }
  void TearDown() override { end_on_devices(); }
  static int stage() { return std::get<2>(GetParam()); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(std::get<1>(GetParam()), stage());
    made.config.compute_dtype = dtype;
    made.steps = 3;
    return made;
  }
  Scenario in_files(Scenario scenario) const {
    scenario.config.offload.gradients = OffloadConfig::Gradients::kNvme;
    scenario.config.offload_optimizer.device = OffloadDevice::kNvme;
    scenario.config.offload_optimizer.nvme_path = {directory_.path()};
    return on_devices(std::move(scenario));
  }
  void expect_the_same_bits(const Scenario& without, const Scenario& offloads) const {
    const test::Result result = expect_bits_of(without, in_files(offloads));
    EXPECT_EQ(planned(result, "gradients", "device"), 0) << without.text();
    EXPECT_EQ(planned(result, "gradients", "host"), 0) << without.text();
    EXPECT_GT(planned(result, "gradients", "file"), 0) << without.text();
  }

  TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, GradientFileOffload, ::testing::ValuesIn(cases_of_all_stages()));

TEST_P(GradientFileOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t accumulation : {1, 3}) {
      Scenario made = scenario(dtype);
      made.config.grad_accumulation_steps = accumulation;
      made.model.frozen = made.model.unused = accumulation == 3;
      made.steps = 2;
      expect_the_same_bits(made, made);
    }
  }
}

// Several chunks of each unit, whose sums are kept in 16 bits; parameters go, too.
TEST_P(GradientFileOffload, LargeUnits) {
  Scenario large = scenario(DType::kBFloat16);
  large.config.grad_accumulation_steps = 2;
  large.config.grad_accum_dtype = DType::kBFloat16;
  large.model.ballast = 2'300'000;
  large.steps = 2;
  Scenario offloads = large;
  if (stage() == 3)
    offloads.config.offload_param = {
        .device = OffloadDevice::kNvme, .nvme_path = {directory_.path()}, .max_in_memory = 0};
  std::vector<at::Tensor> values;
  for (const Scenario& made : {on_devices(large), in_files(offloads)}) {
    test::ThreadWorld world(made);
    const auto errors = world.run([](test::Rank& rank) { rank.train(); });
    ASSERT_THAT(errors, Each(""));
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_TRUE(values[0].equal(values[1])) << large.text();
  expect_no_race(large);
}

TEST_P(GradientFileOffload, SkipsStepsThatOverflow) {
  expect_skipped_steps(scenario(DType::kFloat16), [this](const Scenario& made) { return in_files(made); });
}

TEST_P(GradientFileOffload, AnEngineMayGoAtAnyTime) {
  expect_an_engine_may_go(in_files(scenario(DType::kBFloat16)));
}

TEST_P(GradientFileOffload, MemoryThatCannotBePinnedGivesTheSameBits) {
  Scenario pageable = in_files(scenario(DType::kBFloat16));
  pageable.config.grad_accumulation_steps = 2;
  const Scenario pinned = pageable;
  pageable.config.offload_optimizer.pin_memory = false;
  expect_bits_without_pinning(pinned, pageable);
}

TEST_P(GradientFileOffload, StreamsOfTheUsersGiveTheSameBits) {
  expect_the_same_bits_on_own_streams(in_files(scenario(DType::kBFloat16)));
}

TEST_P(GradientFileOffload, GradientsAreReadAndSet) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_same_gradients(on_devices(scenario(dtype)), in_files(scenario(dtype)));
  expect_no_race(scenario());
}

TEST_P(GradientFileOffload, AShareOfTheStatesIsRefused) {
  Scenario part = in_files(scenario());
  part.config.offload_optimizer.ratio = 0.5;
  test::ThreadWorld world(part);
  EXPECT_THAT(world.run([](test::Rank& rank) { rank.make_engine(); }),
              Each(HasSubstr("offload.gradients = \"nvme\": zero_optimization.offload_optimizer.ratio is 0.5")));
}

}  // namespace
}  // namespace zeroshard::accelerator

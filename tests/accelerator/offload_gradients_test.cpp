// Engines on simulated devices whose optimizer states have left the device, and whose reduced gradients stay there: the
// host fetches them for its update.
#include <gmock/gmock.h>

#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

class GradientOffload : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/9); }
  void TearDown() override { end_on_devices(); }
  static int stage() { return std::get<2>(GetParam()); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(std::get<1>(GetParam()), stage());
    made.config.compute_dtype = dtype;
    made.steps = 3;
    return made;
  }
  Scenario staying(Scenario scenario, OffloadDevice states = OffloadDevice::kCpu) const {
    scenario.config.offload.gradients = OffloadConfig::Gradients::kDevice;
    scenario.config.offload_optimizer.device = states;
    scenario.config.offload_optimizer.nvme_path = {directory_.path()};
    return on_devices(std::move(scenario));
  }
  // States are on `tier`; gradients take as much memory of the device as without offload, and none of the host.
  void expect_the_same_bits(const Scenario& scenario, OffloadDevice states) const {
    const test::Result without = test::train(on_devices(scenario));
    const test::Result result = expect_bits_of(scenario, staying(scenario, states));
    EXPECT_EQ(planned(result, "gradients", "device"), planned(without, "gradients", "device")) << scenario.text();
    EXPECT_EQ(planned(result, "reduce ring", "device"), planned(without, "reduce ring", "device")) << scenario.text();
    EXPECT_EQ(planned(result, "gradients", "host"), 0) << scenario.text();
    EXPECT_EQ(planned(result, "moments", "device"), 0) << scenario.text();
    EXPECT_GT(planned(result, "pinned", "host"), 0) << scenario.text();
  }

  TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, GradientOffload, ::testing::ValuesIn(cases_of_all_stages()));

TEST_P(GradientOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const OffloadDevice states : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      expect_the_same_bits(scenario(dtype), states);
      Scenario accumulating = scenario(dtype);
      accumulating.steps = 2;
      accumulating.config.grad_accumulation_steps = 3;
      expect_the_same_bits(accumulating, states);
    }
  }
}

// Parameters without a gradient are between those that are updated; sums in 16 bits; no moments; units that stay whole.
TEST_P(GradientOffload, OtherModelsAndOptimizers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario gaps = scenario(dtype);
    gaps.model.frozen = gaps.model.unused = true;
    expect_the_same_bits(gaps, OffloadDevice::kCpu);
    Scenario plain = scenario(dtype);
    plain.config.persistence_threshold = 1'000'000;
    plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
    plain.config.optimizer->momentum = 0;
    expect_the_same_bits(plain, OffloadDevice::kCpu);
  }
  Scenario rounded = scenario(DType::kBFloat16);
  rounded.config.grad_accumulation_steps = 3;
  rounded.config.grad_accum_dtype = DType::kBFloat16;
  expect_the_same_bits(rounded, OffloadDevice::kCpu);
}

// Shards of parameters are on the host, or in files, and updated there. With plain SGD nothing else is.
TEST_P(GradientOffload, ParametersLeaveTheDeviceToo) {
  if (stage() < 3) return;
  for (const OffloadDevice place : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool plain : {false, true}) {
        Scenario made = scenario(dtype);
        if (plain) made.config.optimizer->type = OptimizerConfig::Type::kSgd;
        made.config.offload_param = {.device = place, .nvme_path = {directory_.path()}, .max_in_memory = 0};
        Scenario without = made;
        without.config.offload_param = {};
        if (plain) made.config.optimizer->momentum = without.config.optimizer->momentum = 0;
        expect_bits_of(without, staying(made, place));
      }
    }
  }
}

// Each unit's gradients come in several pieces, and the buffers of these are used again and again.
TEST_P(GradientOffload, PiecesComeWhileOthersAreUsed) {
  Scenario large = scenario(DType::kBFloat16);
  large.model.ballast = 2'300'000;
  large.steps = 2;
  std::vector<at::Tensor> values;
  for (const bool offloads : {false, true}) {
    test::ThreadWorld world(offloads ? staying(large) : on_devices(large));
    const auto errors = world.run([](test::Rank& rank) { train_without_waits(rank, {}); });
    ASSERT_THAT(errors, Each(""));
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_TRUE(values[0].equal(values[1])) << large.text();
  expect_no_race(large);
}

TEST_P(GradientOffload, TheHostWaitsForTheAgreementAlone) {
  expect_a_wait_for_the_agreement_alone(staying(scenario(DType::kBFloat16)));
}

TEST_P(GradientOffload, AnEngineMayGoAtAnyTime) {
  expect_an_engine_may_go(staying(scenario(DType::kBFloat16)));
}

TEST_P(GradientOffload, MemoryThatCannotBePinnedGivesTheSameBits) {
  Scenario pageable = staying(scenario(DType::kBFloat16));
  const Scenario pinned = pageable;
  pageable.config.offload_optimizer.pin_memory = false;
  expect_bits_without_pinning(pinned, pageable);
}

TEST_P(GradientOffload, StreamsOfTheUsersGiveTheSameBits) {
  expect_the_same_bits_on_own_streams(staying(scenario(DType::kBFloat16)));
}

TEST_P(GradientOffload, GradientsAreReadAndSet) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_same_gradients(on_devices(scenario(dtype)), staying(scenario(dtype)));
  expect_no_race(scenario());
}

// It has its gradients where it has its states.
TEST_P(GradientOffload, AnOptimizerOutsideUpdatesOnTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const at::Tensor without = values_of_an_optimizer_outside(on_devices(scenario(dtype)), /*on_host=*/false);
    EXPECT_TRUE(without.equal(values_of_an_optimizer_outside(staying(scenario(dtype)), /*on_host=*/true)));
  }
  expect_no_race(scenario());
}

TEST_P(GradientOffload, CheckpointsGoBetweenTiers) {
  for (const bool saves_with : {false, true}) {
    const TemporaryDirectory root;
    const auto place = [&](const Scenario& made, bool stay) { return stay ? staying(made) : on_devices(made); };
    const Scenario saving = place(scenario(DType::kBFloat16), saves_with);
    const SavedRun run = train_and_save(saving, root.path());
    const Scenario loading = place(scenario(DType::kBFloat16), !saves_with);
    expect_same_end(loading, run, [&](test::SavingRank& rank) {
      rank.train_step(loading, 0);
      EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
    });
  }
  expect_no_race(scenario());
}

// Asked for on the host without the states, on every rank; with them it is what happens anyway.
TEST_P(GradientOffload, OnTheHostWithTheStatesAlone) {
  Scenario alone = on_devices(scenario());
  alone.config.offload.gradients = OffloadConfig::Gradients::kCpu;
  const auto refused = [](const Scenario& made) {
    test::ThreadWorld world(made);
    return world.run([](test::Rank& rank) { rank.make_engine(); });
  };
  EXPECT_THAT(refused(alone), Each(HasSubstr("offload.gradients = \"cpu\": ")));
  EXPECT_THAT(refused(alone), Each(HasSubstr("offload_optimizer.device is \"none\": set that to \"cpu\"")));
  alone.config.offload_optimizer.device = OffloadDevice::kCpu;
  alone.config.offload_optimizer.ratio = 0;
  EXPECT_THAT(refused(alone), Each(HasSubstr("offload_optimizer.ratio is 0: set that to 1")));
  alone.config.offload_optimizer.ratio = 1;
  const test::Result result = expect_bits_of(scenario(), alone);
  EXPECT_GT(planned(result, "gradients", "host"), 0);
  EXPECT_EQ(planned(result, "pinned", "host"), 0);
}

}  // namespace
}  // namespace zeroshard::accelerator

// Engines on simulated devices whose shards of parameters lie on the host: the same bits, in less memory of the device,
// and no wait that is missing.
#include <gmock/gmock.h>

#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::kUnits;
using test::Result;
using test::Scenario;
using ::testing::Each;
using testing::TemporaryDirectory;

Scenario offloading_params(Scenario scenario) {
  scenario.config.offload_param.device = OffloadParamConfig::Device::kCpu;
  scenario.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  return on_devices(std::move(scenario));
}

class ParamOffload : public ::testing::TestWithParam<std::tuple<Schedule, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/4); }
  void TearDown() override { end_on_devices(); }
  static int ranks() { return std::get<1>(GetParam()); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(ranks(), /*stage=*/3);
    made.config.compute_dtype = dtype;
    return made;
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, ParamOffload,
                         ::testing::ValuesIn(cases_of_one_stage({{Schedule::kLazy, 1}, {Schedule::kLazy, 2}})));

Result expect_the_same_bits_of_params(const Scenario& scenario) {
  return expect_bits_of(scenario, offloading_params(scenario));
}

TEST_P(ParamOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Result result = expect_the_same_bits_of_params(scenario(dtype));
    EXPECT_EQ(planned(result, "parameters", "device"), 0);
    EXPECT_GT(planned(result, "parameters", "host"), 0);
    EXPECT_EQ(planned(result, "pinned", "host"), 0);  // nothing is copied back
    EXPECT_EQ(planned(result, "master weights", "host") > 0, dtype != DType::kFloat32);
  }
}

TEST_P(ParamOffload, AccumulatesGradients) {
  for (const Scenario& each : accumulating(scenario(DType::kBFloat16))) expect_the_same_bits_of_params(each);
}

TEST_P(ParamOffload, SkipsStepsThatOverflow) {
  expect_skipped_steps(scenario(DType::kFloat16), [&](const Scenario& of) { return offloading_params(of); });
}

// Small units and those of a rule stay on the device; the others leave it. Frozen parameters leave, and those that no
// forward reads.
TEST_P(ParamOffload, UnitsOfAllKindsBesideEachOther) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario mixed = scenario(dtype);
    mixed.model.frozen = mixed.model.unused = true;
    mixed.config.persistence_threshold = 1500;  // the head
    mixed.config.placement = {{"unit 3", /*replicated=*/true}};
    const Result result = expect_the_same_bits_of_params(mixed);
    EXPECT_GT(planned(result, "parameters", "device"), 0);
    EXPECT_GT(planned(result, "parameters", "host"), 0);
    EXPECT_GT(planned(result, "master weights", "host"), 0);
  }
}

TEST_P(ParamOffload, WithoutPrefetchAndWithoutOverlap) {
  Scenario plain = scenario(DType::kBFloat16);
  plain.config.prefetch_numel = 0;
  plain.config.overlap_comm = false;
  expect_the_same_bits_of_params(plain);
}

// The optimizer's states stay on the device, and fp32 parameters with them: frozen ones alone leave.
TEST_P(ParamOffload, FrozenParametersLeaveAlone) {
  Scenario frozen = scenario();
  frozen.model.frozen = true;
  const Result expected = test::train(on_devices(frozen));
  Scenario alone = offloading_params(frozen);
  alone.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kNone;
  const Result result = test::train(alone);
  ASSERT_FALSE(HasFailure());
  EXPECT_TRUE(result.values.equal(expected.values));
  expect_as_planned(alone, result);
  EXPECT_GT(planned(result, "parameters", "host"), 0);
  EXPECT_EQ(planned(result, "master weights", "host"), 0);
  EXPECT_EQ(planned(result, "parameters", "device") + planned(result, "parameters", "host"),
            planned(expected, "parameters", "device"));
  expect_no_race(alone);
}

// Large units: slots of the ring are used again within a pass, while their last users may still be busy.
TEST_P(ParamOffload, SlotsAreUsedAgain) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario large = scenario(dtype);
    large.model.ballast = 1 << 17;
    large.steps = 3;
    std::vector<at::Tensor> values;
    for (const bool offloads : {false, true}) {
      test::ThreadWorld world(offloads ? offloading_params(large) : on_devices(large));
      ASSERT_THAT(world.run([](test::Rank& rank) { train_without_waits(rank, {}); }), Each(""));
      values.push_back(world.rank(0).result.values);
    }
    EXPECT_TRUE(values[0].equal(values[1])) << large.text();
    expect_no_race(large);
  }
}

TEST_P(ParamOffload, WeightsThatAreSetWaitForTheCopiesOfAPass) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    expect_old_weights_in_passes(on_devices(scenario(dtype)), offloading_params(scenario(dtype)), set_weights);
  }
}

TEST_P(ParamOffload, WritesOfGatheredUnitsWaitForTheCopiesOfAPass) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    expect_old_weights_in_passes(on_devices(scenario(dtype)), offloading_params(scenario(dtype)), write_gathered_units);
  }
}

// Passes of evaluation before, between and after; their losses are those without offload.
TEST_P(ParamOffload, StepsBetweenPassesOfEvaluation) {
  expect_old_weights_in_passes(on_devices(scenario(DType::kBFloat16)), offloading_params(scenario(DType::kBFloat16)),
                               [](test::Rank& rank, int pass) { rank.train_step(pass + 1); });
}

TEST_P(ParamOffload, StreamsOfTheUsersGiveTheSameBits) {
  expect_the_same_bits_on_own_streams(offloading_params(scenario(DType::kBFloat16)));
}

TEST_P(ParamOffload, TheHostWaitsForTheAgreementAlone) {
  expect_a_wait_for_the_agreement_alone(offloading_params(scenario(DType::kBFloat16)));
}

TEST_P(ParamOffload, AnEngineMayGoAtAnyTime) {
  expect_an_engine_may_go(offloading_params(scenario(DType::kBFloat16)));
}

TEST_P(ParamOffload, ReturnsItsUnits) {
  expect_returned_units(offloading_params(scenario(DType::kBFloat16)));
}

// Ranks that read their shards themselves never have the model whole on the device.
TEST_P(ParamOffload, RanksReadTheirShards) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Scenario made = offloading_params(scenario(dtype));
    const Result expected = test::train(made);
    test::ThreadWorld world(made);
    const auto errors = world.run([](test::Rank& rank) {
      at::set_num_threads(1);
      const test::Model values(rank.scenario.model, /*seed=*/0);
      std::vector<UnitDefinition> units = rank.model.definitions();
      for (size_t u = 0; u < kUnits; ++u) {
        units[u].values = [&values, u](const std::string& name, int64_t begin, int64_t end, float* out) {
          const size_t index = std::stoul(name.substr(name.rfind('.') + 1));
          const at::Tensor flat = values.params()[u][index].detach().reshape({-1});
          std::copy(flat.const_data_ptr<float>() + begin, flat.const_data_ptr<float>() + end, out);
        };
      }
      EngineOptions options;
      options.config = rank.scenario.config;
      options.device = rank.scenario.device_of(rank.gather.rank());
      rank.engine = std::make_unique<Engine>(std::move(units), std::move(options), rank.gather, rank.reduce);
      for (int step = 0; step < rank.scenario.steps; ++step) rank.train_step(step);
      rank.finish();
    });
    ASSERT_THAT(errors, Each(""));
    EXPECT_TRUE(expected.values.equal(world.rank(0).result.values));
    expect_no_race(made);
  }
}

TEST_P(ParamOffload, MemoryThatCannotBePinnedGivesTheSameBits) {
  const Scenario made = offloading_params(scenario(DType::kBFloat16));
  Scenario pageable = made;
  pageable.config.offload_param.pin_memory = pageable.config.offload_optimizer.pin_memory = false;
  expect_bits_without_pinning(made, pageable);
}

// An optimizer outside the engine has tensors of the host: of fp32 parameters, the shards themselves.
TEST_P(ParamOffload, AnOptimizerOutsideUpdatesOnTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const at::Tensor without = values_of_an_optimizer_outside(on_devices(scenario(dtype)), /*on_host=*/false);
    EXPECT_TRUE(without.equal(values_of_an_optimizer_outside(offloading_params(scenario(dtype)), /*on_host=*/true)));
  }
  expect_no_race(scenario());
}

// Saved with offload and loaded without, and the other way round: in the background, at another stage, with a pass
// under way whose gathers the load must not change, and with frozen parameters.
TEST_P(ParamOffload, CheckpointsGoBetweenTiers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool saves_from_host : {false, true}) {
      const TemporaryDirectory root;
      Scenario made = scenario(dtype), other = scenario(dtype);
      made.model.frozen = other.model.frozen = true;
      (saves_from_host ? other : made).config.stage = 2;
      const Scenario saving = saves_from_host ? offloading_params(made) : on_devices(made);
      const Scenario loading = saves_from_host ? on_devices(other) : offloading_params(other);
      const SavedRun run = train_and_save(saving, root.path(), {.async = dtype == DType::kFloat32});
      expect_same_end(loading, run, [&](test::SavingRank& rank) { load_under_a_pass(rank, loading, root.path()); });
    }
  }
  expect_no_race(scenario());
}

}  // namespace
}  // namespace zeroshard::accelerator

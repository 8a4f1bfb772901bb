#include <gmock/gmock.h>

#include "file/support.h"
#include "world/support.h"
#include "zeroshard/error.h"

// What ranks may hold, and what happens when a plan needs more.
namespace zeroshard::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

int64_t planned_bytes(const Result& result) {
  int64_t sum = 0;
  for (const MemoryLine& line : result.memory)
    if (line.tier != "file") sum += line.planned;
  return sum;
}

// What each rank says when its engine is made.
std::vector<std::string> refusals(const Scenario& scenario) {
  ThreadWorld world(scenario);
  std::vector<std::string> said(size_t(scenario.world_size));
  const auto errors = world.run([&](Rank& rank) {
    try {
      rank.make_engine();
    } catch (const ConfigError& error) {
      said[size_t(rank.gather.rank())] = error.what();
    }
  });
  EXPECT_THAT(errors, Each(""));
  return said;
}

class MemoryLimitsOfWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Limits, MemoryLimitsOfWorlds, ::testing::Values(1, 2, 3));

TEST_P(MemoryLimitsOfWorlds, APlanFitsIntoItsBytesAndNotIntoOneLess) {
  for (const int stage : {1, 2, 3}) {
    Scenario scenario = make_scenario(GetParam(), stage);
    const Result expected = train(scenario);
    const int64_t bytes = planned_bytes(expected);
    scenario.config.offload.host_memory = bytes;
    const Result limited = train(scenario);
    ASSERT_FALSE(::testing::Test::HasFailure()) << scenario.text();
    EXPECT_TRUE(limited.values.equal(expected.values)) << scenario.text();
    for (const bool by_device : {false, true}) {  // on the CPU these are one
      scenario.config.offload = {};
      (by_device ? scenario.config.offload.device_memory : scenario.config.offload.host_memory) = bytes - 1;
      EXPECT_THAT(
          refusals(scenario),
          Each(AllOf(HasSubstr(concat("needs ", bytes, " bytes")), HasSubstr(concat("has ", bytes - 1, " bytes")),
                     HasSubstr(by_device ? "zeroshard.offload.device_memory" : "zeroshard.offload.host_memory"),
                     HasSubstr("The smallest change that fits: "))))
          << scenario.text();
    }
  }
}

TEST(MemoryLimitsOfEngines, TheAdviceIsTrue) {
  const TemporaryDirectory folder;
  Scenario scenario = make_scenario(2, 1);
  scenario.model.ballast = 200'000;  // so that states weigh more than the buffers through which they go
  Scenario in_files = scenario;
  in_files.config.offload_optimizer = {
      .device = OffloadOptimizerConfig::Device::kNvme, .nvme_path = {folder.path()}, .buffer_count = 1};
  scenario.config.offload_optimizer.buffer_count = 1;
  in_files.config.offload.host_memory = scenario.config.offload.host_memory = planned_bytes(train(in_files));
  EXPECT_THAT(refusals(scenario), Each(HasSubstr("fits: zero_optimization.offload_optimizer.device = \"nvme\"")));
  train(in_files);
  EXPECT_FALSE(::testing::Test::HasFailure());
}

// The states that a ratio below 1 leaves in memory count.
TEST(MemoryLimitsOfEngines, AHigherRatioMayFit) {
  const TemporaryDirectory folder;
  Scenario part = make_scenario(2, 2);
  part.model.ballast = 200'000;
  part.config.offload_optimizer = {
      .device = OffloadOptimizerConfig::Device::kNvme, .ratio = 0.5, .nvme_path = {folder.path()}, .buffer_count = 1};
  const int64_t bytes = planned_bytes(train(part));
  part.config.offload.host_memory = bytes;
  train(part);
  EXPECT_FALSE(::testing::Test::HasFailure());
  part.config.offload.host_memory = bytes - 1;
  EXPECT_THAT(refusals(part), Each(HasSubstr("fits: zero_optimization.offload_optimizer.ratio = 1")));
  part.config.offload_optimizer.ratio = 1;
  train(part);
  EXPECT_FALSE(::testing::Test::HasFailure());
}

TEST(MemoryLimitsOfEngines, WhereNothingFitsThatIsTold) {
  Scenario scenario = make_scenario(2, 2);
  scenario.config.offload.host_memory = 1000;
  EXPECT_THAT(refusals(scenario), Each(HasSubstr("No stage, offload or number of ranks fits")));
}

// The units take over their tensors when nothing has been refused: a model that was may be used.
TEST(MemoryLimitsOfEngines, AfterARefusalTheModelIsAsBefore) {
  Scenario scenario = make_scenario(2, 3);
  const Result expected = train(scenario);
  ThreadWorld world(scenario);
  std::vector<Result> results(2);
  const auto errors = world.run([&](Rank& rank) {
    EngineOptions options;
    options.config = scenario.config;
    options.config.offload.host_memory = 1000;
    for (int i = 0; i < 3; ++i)
      EXPECT_THROW(Engine(rank.model.definitions(), options, rank.gather, rank.reduce), ConfigError);
    rank.train();
    results[size_t(rank.gather.rank())] = rank.result;
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_TRUE(results[0].values.equal(expected.values));
}

}  // namespace
}  // namespace zeroshard::test

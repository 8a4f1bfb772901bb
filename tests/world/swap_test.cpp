#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "file/open_swap_files.h"
#include "file/support.h"
#include "layout/shard_layout.h"
#include "world/support.h"

// Optimizer states in swap files.
namespace zeroshard::test {
namespace {

using testing::flip_bits;
using testing::swap_files_in;
using testing::TemporaryDirectory;

Scenario in_files(Scenario scenario, const std::vector<std::string>& directories, int buffer_count = 2,
                  double ratio = 1) {
  scenario.config.offload_optimizer = {.device = OffloadOptimizerConfig::Device::kNvme,
                                       .ratio = ratio,
                                       .nvme_path = directories,
                                       .buffer_count = buffer_count};
  return scenario;
}

// Held by a rank in files, or in memory.
int64_t state_bytes(const Result& result, bool in_file) {
  int64_t bytes = 0;
  for (const MemoryLine& line : result.memory)
    if ((line.category == "moments" || line.category == "master weights") && (line.tier == "file") == in_file)
      bytes += line.measured_peak;
  return bytes;
}

// The same bits, and as many bytes on each tier as planned. Returns the result of `swapped`.
Result expect_same(const Scenario& scenario, const Scenario& swapped, bool plan_holds = true) {
  const Result result = expect_same_training(scenario, swapped, plan_holds);
  if (::testing::Test::HasFailure()) return result;
  const double ratio = swapped.config.offload_optimizer.ratio;
  EXPECT_EQ(state_bytes(result, /*in_file=*/true) > 0, ratio > 0);
  EXPECT_TRUE(ratio > 0.5 || state_bytes(result, /*in_file=*/false) > 0) << swapped.text();
  EXPECT_TRUE(ratio < 1 || state_bytes(result, /*in_file=*/false) == 0) << swapped.text();
  return result;
}

class SwapWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Swap, SwapWorlds, ::testing::Values(1, 2, 3, 4));

TEST_P(SwapWorlds, GiveTheSameBitsInThePlannedMemory) {
  const TemporaryDirectory one, other;
  for (const int stage : {1, 2, 3}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t accumulation : {1, 3}) {
        Scenario scenario = make_scenario(GetParam(), stage);
        scenario.config.compute_dtype = dtype;
        scenario.config.grad_accumulation_steps = accumulation;
        scenario.model.frozen = accumulation == 3;
        scenario.model.ballast = 20'000;  // so that a unit has several chunks' blocks
        expect_same(scenario, in_files(scenario, {one.path(), other.path()}, stage));
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(one.path()));
}

// The first blocks of each unit's states in files, the others in memory. Units of one block are in files as a whole.
TEST_P(SwapWorlds, AShareOfTheStatesGivesTheSameBitsInThePlannedMemory) {
  const TemporaryDirectory one, other;
  for (const double ratio : {0.0, 0.3, 0.999}) {
    for (const int stage : {1, 2, 3}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const int64_t accumulation : {1, 3}) {
          Scenario scenario = make_scenario(GetParam(), stage);
          scenario.config.compute_dtype = dtype;
          scenario.config.grad_accumulation_steps = accumulation;
          scenario.model.frozen = accumulation == 3;
          scenario.model.ballast = 20'000;
          scenario.steps = 3;
          SCOPED_TRACE(ratio);
          const Result result = expect_same(scenario, in_files(scenario, {one.path(), other.path()}, stage, ratio));
          const auto in_file = double(state_bytes(result, true)), all = in_file + double(state_bytes(result, false));
          const double most_more = double(kUnits * kBlockNumel) * 12 / all;  // a block of each unit
          EXPECT_GE(in_file / all, ratio);
          EXPECT_LT(in_file / all, ratio + most_more);
        }
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(one.path()));
}

TEST_P(SwapWorlds, LeftOutUnitsAndUnusedParametersChangeNothing) {
  const TemporaryDirectory directory;
  for (const int stage : {1, 2, 3}) {
    Scenario scenario = make_scenario(GetParam(), stage);
    scenario.config.compute_dtype = DType::kBFloat16;
    scenario.model.unused = scenario.model.frozen = true;
    scenario.steps = 6;
    scenario.skip = [](int, int step, size_t unit) { return step % 3 == 1 && unit == 2; };
    scenario.model.ballast = 20'000;
    for (const double ratio : {0.5, 1.0})
      expect_same(scenario, in_files(scenario, {directory.path()}, 3, ratio), /*plan_holds=*/false);
  }
}

TEST_P(SwapWorlds, SkippedStepsChangeNothing) {
  const TemporaryDirectory directory;
  for (const int stage : {1, 3}) {
    Scenario scenario = skipping_a_step(make_scenario(GetParam(), stage));
    scenario.model.ballast = 20'000;
    for (const double ratio : {0.5, 1.0}) expect_same(scenario, in_files(scenario, {directory.path()}, 2, ratio));
  }
}

// What is lost on one rank ends all, with the reason.
TEST(SwapFaults, DamageOnOneRankEndsEveryRank) {
  for (const bool flips : {true, false}) {
    for (const int stage : {1, 2, 3}) {
      const TemporaryDirectory directory;
      Scenario scenario = in_files(make_scenario(3, stage), {directory.path()});
      ThreadWorld world(scenario);
      const std::vector<std::string> errors = world.run([&](Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        rank.train_step(0);
        rank.reduce.barrier("before");
        if (rank.reduce.rank() == 1) {
          const std::vector<UniqueFd> files = swap_files_in(directory.path());
          ASSERT_EQ(files.size(), 3U);
          if (flips) {
            flip_bits(files[0].get());
          } else {
            ASSERT_EQ(::ftruncate(files[0].get(), 0), 0);
          }
        }
        rank.reduce.barrier("after");
        for (int step = 1; step < 3; ++step) rank.train_step(step);
        rank.reduce.barrier("end");
      });
      for (const std::string& error : errors) {
        // What is written behind makes a file that was cut long again, with zeros.
        EXPECT_THAT(error, ::testing::ContainsRegex(flips ? "cannot use what was read from the swap file in "
                                                          : "cannot (read|use what was read from) the swap file in "))
            << "stage " << stage;
        EXPECT_THAT(error, ::testing::HasSubstr(directory.path()));
      }
    }
  }
}

// Without checksums nobody notices.
TEST(SwapFaults, WithoutChecksumsDamageIsNotLookedFor) {
  const TemporaryDirectory directory;
  Scenario scenario = in_files(make_scenario(1, 2), {directory.path()});
  scenario.config.offload.verify = false;
  ThreadWorld world(scenario);
  const std::vector<std::string> errors = world.run([&](Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    rank.train_step(0);
    for (const UniqueFd& file : swap_files_in(directory.path())) flip_bits(file.get());
    for (int step = 1; step < 3; ++step) rank.train_step(step);
  });
  EXPECT_EQ(errors[0], "");
}

TEST(SwapFiles, RequestsAreAsTheConfigurationSays) {
  const TemporaryDirectory directory;
  const auto told = [&](const AioConfig& aio) {
    Scenario scenario = in_files(make_scenario(1, 2), {directory.path()});
    scenario.config.aio = aio;
    ::testing::internal::CaptureStderr();
    train(scenario);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(told({}), ::testing::HasSubstr("in requests of 1048576 bytes, up to 32 at once"));
  EXPECT_THAT(told({.block_size = 8192, .queue_depth = 3, .thread_count = 2}),
              ::testing::HasSubstr("in requests of 8192 bytes, up to 3 at once"));
}

TEST(SwapFaults, ADirectoryThatCannotBeUsedIsAnErrorOfTheConfiguration) {
  const TemporaryDirectory directory;
  testing::put(directory / "file", "x");
  for (const char* name : {"file", "file/below"}) {
    ThreadWorld world(in_files(make_scenario(2, 2), {directory / name}));
    for (const std::string& error : world.run([](Rank& rank) {
           EXPECT_THROW(rank.make_engine(), ConfigError);
           rank.make_engine();
         }))
      EXPECT_THAT(error, ::testing::AllOf(::testing::HasSubstr("offload_optimizer.nvme_path: rank 0: cannot open"),
                                          ::testing::HasSubstr(directory / name)));
  }
}

}  // namespace
}  // namespace zeroshard::test

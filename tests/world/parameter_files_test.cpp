#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "base/align.h"
#include "file/open_swap_files.h"
#include "file/support.h"
#include "layout/shard_layout.h"
#include "world/support.h"

// Parameters in swap files, at stage 3.
namespace zeroshard::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::flip_bits;
using ::testing::HasSubstr;
using testing::swap_files_in;
using testing::TemporaryDirectory;

struct Files {
  std::vector<std::string> directories;
  int buffer_count = 2;
  int64_t max_in_memory = 0;
  bool states = true;  // go, too
};

Scenario in_files(Scenario scenario, const Files& files) {
  using Device = OffloadParamConfig::Device;
  OffloadParamConfig& param = scenario.config.offload_param;
  param = {.device = Device::kNvme, .nvme_path = files.directories, .buffer_count = files.buffer_count};
  param.max_in_memory = files.max_in_memory;
  if (files.states) {
    scenario.config.offload_optimizer = {
        .device = OffloadOptimizerConfig::Device::kNvme, .nvme_path = files.directories, .buffer_count = 2};
  }
  return scenario;
}

class ParameterFiles : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ParameterFiles, ::testing::Values(1, 2, 3, 4));

TEST_P(ParameterFiles, GiveTheSameBitsInThePlannedMemory) {
  const TemporaryDirectory one, other;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t accumulation : {1, 3}) {
      for (const int buffer_count : {1, 3}) {
        Scenario scenario = make_scenario(GetParam(), 3);
        scenario.config.compute_dtype = dtype;
        scenario.config.grad_accumulation_steps = accumulation;
        scenario.model.frozen = accumulation == 3;
        scenario.model.ballast = 20'000;  // so that a unit has several blocks
        const Result result =
            expect_same_training(scenario, in_files(scenario, {{one.path(), other.path()}, buffer_count}));
        EXPECT_GT(peak_of(result, "parameters", "file"), 0);
        EXPECT_EQ(peak_of(result, "parameters", "device"), 0);
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(one.path()));
}

// Trained ones and frozen ones: states stay in memory, and master weights of 16-bit parameters. fp32 ones are their
// own.
TEST_P(ParameterFiles, GoWithoutTheirStates) {
  const TemporaryDirectory directory;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool some_are_frozen : {false, true}) {
      for (const int64_t accumulation : {1, 3}) {
        Scenario scenario = make_scenario(GetParam(), 3);
        scenario.config.compute_dtype = dtype;
        scenario.config.grad_accumulation_steps = accumulation;
        scenario.model.ballast = 20'000;
        scenario.model.frozen_ballast = some_are_frozen;
        const Scenario alone = in_files(scenario, {.directories = {directory.path()}, .states = false});
        const Result without = train(scenario), result = expect_same_training(scenario, alone);
        // One rank has no shards without.
        if (GetParam() > 1) {
          EXPECT_EQ(peak_of(result, "parameters", "file"), peak_of(without, "parameters", "device"));
        }
        EXPECT_GE(peak_of(result, "parameters", "file"), kBlocks * 20'000 / GetParam() * element_size(dtype));
        EXPECT_EQ(peak_of(result, "parameters", "device"), 0);
        for (const std::string category : {"moments", "master weights"}) {
          EXPECT_EQ(peak_of(result, category, "file"), 0);
          if (GetParam() > 1) {
            EXPECT_EQ(peak_of(result, category, "device"), peak_of(without, category, "device"));
          }
        }
      }
    }
  }
}

TEST_P(ParameterFiles, GoWithoutStatesThroughSkippedSteps) {
  const TemporaryDirectory directory;
  Scenario scenario = make_scenario(GetParam(), 3);
  scenario.config.compute_dtype = DType::kFloat16;
  scenario.config.fp16.enabled = true;
  scenario.config.fp16.initial_scale_power = 4;
  scenario.input_scale = [](int rank, int step) {
    return rank == 0 && step == 1 ? std::numeric_limits<float>::infinity() : 1;
  };
  expect_same_training(scenario, in_files(scenario, {.directories = {directory.path()}, .states = false}));
}

TEST_P(ParameterFiles, SomeMayStayInMemory) {
  const TemporaryDirectory directory;
  Scenario scenario = make_scenario(GetParam(), 3);
  scenario.config.compute_dtype = DType::kBFloat16;
  scenario.model.ballast = 20'000;
  int64_t before = -1;
  for (const int64_t most : {0, 9'000, 20'000, 1'000'000}) {
    const Result result =
        expect_same_training(scenario, in_files(scenario, {.directories = {directory.path()}, .max_in_memory = most}));
    const int64_t in_memory = peak_of(result, "parameters", "device");
    EXPECT_LE(in_memory, 2 * most);
    EXPECT_GE(in_memory, before);
    before = in_memory;
    EXPECT_EQ(peak_of(result, "parameters", "file") == 0, most == 1'000'000);
  }
}

// Units that stay whole keep theirs in memory.
TEST_P(ParameterFiles, SmallAndReplicatedUnitsStay) {
  const TemporaryDirectory directory;
  Scenario scenario = make_scenario(GetParam(), 3);
  scenario.config.compute_dtype = DType::kBFloat16;
  scenario.config.persistence_threshold = 2000;  // the head
  scenario.config.placement = {{"unit 1", true}};
  const Result result = expect_same_training(scenario, in_files(scenario, {{directory.path()}}));
  EXPECT_GT(peak_of(result, "parameters", "device"), 0);
  EXPECT_GT(peak_of(result, "parameters", "file"), 0);
}

TEST_P(ParameterFiles, LeftOutUnitsAndUnusedParametersChangeNothing) {
  const TemporaryDirectory directory;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario scenario = make_scenario(GetParam(), 3);
    scenario.config.compute_dtype = dtype;
    scenario.model.unused = scenario.model.frozen = true;
    scenario.steps = 6;
    scenario.skip = [](int, int step, size_t unit) { return step % 3 == 1 && unit == 2; };
    expect_same_training(scenario, in_files(scenario, {{directory.path()}, 3}), /*plan_holds=*/false);
    // Ranks whose backward passes need other units.
    scenario.skip = {};
    scenario.counts_aside = [](int rank, int step) { return (rank + step) % 2 == 0; };
    expect_same_training(scenario, in_files(scenario, {{directory.path()}, 1}), /*plan_holds=*/false);
  }
}

TEST_P(ParameterFiles, SkippedStepsWriteNothing) {
  const TemporaryDirectory directory;
  const Scenario scenario = skipping_a_step(make_scenario(GetParam(), 3));
  expect_same_training(scenario, in_files(scenario, {{directory.path()}}));
}

TEST_P(ParameterFiles, OptimizersWithoutStatesUpdateThem) {
  const TemporaryDirectory directory;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario scenario = make_scenario(GetParam(), 3);
    scenario.config.compute_dtype = dtype;
    scenario.config.optimizer->type = OptimizerConfig::Type::kSgd;
    const Result result = expect_same_training(scenario, in_files(scenario, {{directory.path()}}));
    EXPECT_GT(peak_of(result, "parameters", "file"), 0);
  }
}

// What users set counts from then on, and gathered parameters show what is in the files.
TEST_P(ParameterFiles, TakeWhatUsersWrite) {
  const TemporaryDirectory directory;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario plain = make_scenario(GetParam(), 3);
    plain.config.compute_dtype = dtype;
    plain.model.frozen = true;
    std::vector<at::Tensor> values;
    for (const Scenario& scenario : {plain, in_files(plain, {{directory.path()}})}) {
      ThreadWorld world(scenario);
      const auto errors = world.run([](Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        rank.train_step(0);
        rank.engine->gather({1}, /*to_modify=*/true);
        if (rank.gather.rank() == 0)
          for (const at::Tensor& param : rank.model.params()[1]) param.detach().mul_(1.5);
        rank.engine->release({1}, /*modify_rank=*/0);
        const at::Tensor weights = at::arange(kWidth * kWidth, at::kFloat) / 1000;
        rank.engine->set_weights(/*unit=*/2, /*param=*/0, /*begin=*/0, weights);
        rank.train_step(1);
        rank.train_step(2);
        rank.finish();
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      values.push_back(world.rank(0).result.values);
    }
    ASSERT_TRUE(values[0].defined() && values[1].defined());
    EXPECT_TRUE(values[0].equal(values[1])) << name_of(dtype);
  }
}

// Frozen ones, too, which nobody writes after the start.
TEST(ParameterFileFaults, DamageOnOneRankEndsEveryRankWithTheUnit) {
  for (const bool flips : {true, false}) {
    for (const bool states : {true, false}) {
      const TemporaryDirectory directory;
      Scenario plain = make_scenario(3, 3);
      plain.model.ballast = 20'000;
      plain.model.frozen_ballast = true;
      const Scenario scenario =
          in_files(plain, {.directories = {directory.path()}, .buffer_count = 1, .states = states});
      ThreadWorld world(scenario);
      const std::vector<std::string> errors = world.run([&](Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        rank.train_step(0);
        rank.engine->gather({2});  // so that the only buffer has another shard than the first to be needed
        rank.engine->release({2});
        rank.reduce.barrier("before");
        if (rank.reduce.rank() == 1) {
          const std::vector<UniqueFd> files = swap_files_in(directory.path());
          ASSERT_EQ(files.size(), states ? 6U : 3U);
          for (const UniqueFd& file : files) {
            if (flips) {
              flip_bits(file.get());
            } else {
              ASSERT_EQ(::ftruncate(file.get(), 0), 0);
            }
          }
        }
        rank.reduce.barrier("after");
        for (int step = 1; step < 3; ++step) rank.train_step(step);
        rank.reduce.barrier("end");
      });
      for (const std::string& error : errors) {
        EXPECT_THAT(error, AllOf(ContainsRegex("cannot (read|use what was read from) the swap file in "),
                                 HasSubstr(directory.path()), ContainsRegex("parameters of group . of unit 'unit .'")))
            << "states " << states << ", flips " << flips;
      }
    }
  }
}

TEST(ParameterFileFaults, ADirectoryThatCannotBeUsedIsAnErrorOfTheConfiguration) {
  const TemporaryDirectory directory;
  testing::put(directory / "file", "x");
  for (const char* name : {"file", "file/below"}) {
    Scenario scenario = in_files(make_scenario(2, 3), {{directory / name}});
    scenario.config.offload_optimizer.nvme_path = {directory.path()};
    ThreadWorld world(scenario);
    for (const std::string& error : world.run([](Rank& rank) {
           EXPECT_THROW(rank.make_engine(), ConfigError);
           rank.make_engine();
         }))
      EXPECT_THAT(error, AllOf(HasSubstr("offload_param.nvme_path: rank 0: cannot open"), HasSubstr(directory / name)));
  }
}

// The units are whole again with their values, also when training is over.
TEST(ParameterFilesOfEngines, AreReturnedWithTheUnits) {
  const TemporaryDirectory directory;
  const Scenario scenario = in_files(make_scenario(2, 3), {{directory.path()}});
  ThreadWorld world(scenario);
  std::vector<bool> same(2, false);
  const auto errors = world.run([&](Rank& rank) {
    rank.train();
    for (size_t unit = 0; unit < kUnits; ++unit) rank.engine->return_unit(unit);
    rank.engine.reset();
    std::vector<at::Tensor> values;
    for (const auto& unit : rank.model.params())
      for (const at::Tensor& param : unit) values.push_back(param.detach().to(at::kFloat).reshape({-1}));
    same[size_t(rank.gather.rank())] = at::cat(values).equal(rank.result.values);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_TRUE(same[0] && same[1]);
}

}  // namespace
}  // namespace zeroshard::test

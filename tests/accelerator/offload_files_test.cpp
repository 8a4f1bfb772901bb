// Engines on simulated devices whose optimizer states lie in files, and their reduced gradients on the host: the same
// bits, and no wait that is missing.
#include <gmock/gmock.h>

#include <filesystem>
#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::kWidth;
using test::Scenario;
using ::testing::Each;
using testing::TemporaryDirectory;

class FileOffload : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/5); }
  void TearDown() override { end_on_devices(); }
  static int stage() { return std::get<2>(GetParam()); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(std::get<1>(GetParam()), stage());
    made.config.compute_dtype = dtype;
    made.model.ballast = 20'000;
    made.steps = 3;
    return made;
  }
  Scenario in_files(Scenario scenario) const {
    scenario.config.offload_optimizer = {.device = OffloadOptimizerConfig::Device::kNvme,
                                         .nvme_path = {one_.path(), other_.path()},
                                         .buffer_count = stage()};
    return on_devices(std::move(scenario));
  }
  void expect_the_same_bits(const Scenario& scenario) const {
    for (const MemoryLine& line : expect_bits_of(scenario, in_files(scenario)).memory) {
      if (line.category == "master weights" || line.category == "moments") {
        EXPECT_EQ(line.tier, "file");
      }
    }
  }

  TemporaryDirectory one_, other_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, FileOffload, ::testing::ValuesIn(cases_of_all_stages()));

TEST_P(FileOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    expect_the_same_bits(scenario(dtype));
    Scenario accumulating = scenario(dtype);
    accumulating.steps = 2;
    accumulating.config.grad_accumulation_steps = 3;
    expect_the_same_bits(accumulating);
  }
  EXPECT_TRUE(std::filesystem::is_empty(one_.path()));
}

TEST_P(FileOffload, SkipsStepsThatOverflow) {
  expect_skipped_steps(scenario(DType::kFloat16), [&](const Scenario& of) { return in_files(of); });
}

// With the shards of parameters on the host, too, at stage 3; units that stay whole; no moments.
TEST_P(FileOffload, OtherPlacesOfParametersAndOtherOptimizers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario whole = scenario(dtype);
    whole.config.persistence_threshold = 1'000'000;
    expect_the_same_bits(whole);
    Scenario plain = scenario(dtype);
    plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
    plain.config.optimizer->momentum = 0;
    expect_the_same_bits(plain);
    if (stage() < 3) continue;
    Scenario with_parameters = in_files(scenario(dtype));
    with_parameters.config.offload_param.device = OffloadParamConfig::Device::kCpu;
    expect_bits_of(scenario(dtype), with_parameters);
  }
}

// What users write to whole parameters, and weights that are set, count from the next step on.
TEST_P(FileOffload, WritesOfUsersCount) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    std::vector<at::Tensor> values;
    for (const bool offloads : {false, true}) {
      test::ThreadWorld world(offloads ? in_files(scenario(dtype)) : on_devices(scenario(dtype)));
      const auto errors = world.run([](test::Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        for (int step = 0; step < 3; ++step) {
          const at::NoGradGuard no_grad;
          if (step == 1 && rank.scenario.config.stage < 3) rank.model.params()[2][0].data().mul_(1.5);
          if (step == 2) rank.engine->set_weights(1, 0, 0, at::full({kWidth * kWidth}, 0.01, at::kFloat));
          const at::AutoGradMode grad(true);
          rank.train_step(step);
        }
        rank.finish();
      });
      ASSERT_THAT(errors, Each(""));
      values.push_back(world.rank(0).result.values);
    }
    EXPECT_TRUE(values[0].equal(values[1])) << name_of(dtype);
  }
  expect_no_race(scenario());
}

TEST_P(FileOffload, AnEngineMayGoAtAnyTime) {
  expect_an_engine_may_go(in_files(scenario(DType::kBFloat16)));
}

// Saved from files and loaded on the device, and the other way round: at another stage.
TEST_P(FileOffload, CheckpointsGoBetweenTiers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool saves_from_files : {false, true}) {
      const TemporaryDirectory root;
      const auto place = [&](const Scenario& made, bool offloads) {
        return offloads ? in_files(made) : on_devices(made);
      };
      const Scenario saving = place(scenario(dtype), saves_from_files);
      const SavedRun run = train_and_save(saving, root.path());
      Scenario other = scenario(dtype);
      other.config.stage = saving.config.stage % 3 + 1;
      const Scenario loading = place(other, !saves_from_files);
      expect_same_end(loading, run, [&](test::SavingRank& rank) {
        rank.train_step(loading, 0);
        EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
      });
    }
  }
  expect_no_race(scenario());
}

}  // namespace
}  // namespace zeroshard::accelerator

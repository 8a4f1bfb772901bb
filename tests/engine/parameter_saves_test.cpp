#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/align.h"
#include "engine/late_saves.h"
#include "file/open_swap_files.h"
#include "file/support.h"
#include "layout/shard_layout.h"
#include "zeroshard/error.h"

// Checkpoints in the background of parameters that lie in files.
namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using test::make_scenario;
using test::run_saving;
using test::SavingRank;
using test::Scenario;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr int64_t kBallast = 20'000;

struct Files {
  DType dtype = DType::kFloat32;
  int64_t max_in_memory = 0;
  bool frozen = false;  // the ballast; states stay in memory
  bool alone = false;   // nothing is frozen, and states stay in memory
};

// Parameters in one directory, states in another.
struct Directories {
  TemporaryDirectory parameters, states;

  Scenario in_files(int world_size, const Files& files = {}) const {
    using Device = OffloadDevice;
    Scenario scenario = make_scenario(world_size, /*stage=*/3);
    scenario.config.compute_dtype = files.dtype;
    scenario.model.ballast = kBallast;  // several blocks with checksums
    scenario.model.frozen_ballast = files.frozen;
    OffloadParamConfig& param = scenario.config.offload_param;
    param = {.device = Device::kNvme, .nvme_path = {parameters.path()}, .buffer_count = 1};
    param.max_in_memory = files.max_in_memory;
    if (!files.frozen && !files.alone)
      scenario.config.offload_optimizer = {.device = Device::kNvme, .nvme_path = {states.path()}, .buffer_count = 2};
    return scenario;
  }
};

class ParameterSaves : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParameterSaves, ::testing::Values(1, 2, 3));

const std::vector<Files> kAll = {{DType::kFloat32},          {DType::kBFloat16},
                                 {DType::kFloat32, 30'000},  {DType::kBFloat16, 30'000},
                                 {DType::kFloat32, 0, true}, {DType::kBFloat16, 30'000, true}};
const std::vector<Files> kAlone = {{DType::kFloat32, 0, false, true}, {DType::kBFloat16, 30'000, false, true}};

TEST_P(ParameterSaves, HaveTheStateOfTheirStepWhileTrainingGoesOn) {
  const Directories directories;
  for (const std::vector<Files>& some : {kAll, kAlone}) {
    for (const Files& files : some) {
      Scenario scenario = directories.in_files(GetParam(), files);
      scenario.model.frozen = true;
      scenario.model.unused = true;
      scenario.config.persistence_threshold = 1500;
      test::expect_the_state_of_their_step(scenario, 3);
    }
  }
}

TEST_P(ParameterSaves, WithoutMomentsAndWithStepsThatAreSkipped) {
  const Directories directories;
  Scenario plain = directories.in_files(GetParam());
  plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
  plain.config.optimizer->momentum = 0;
  test::expect_the_state_of_their_step(plain, 4);
  const Scenario files = directories.in_files(GetParam(), {DType::kFloat16});
  test::expect_the_state_of_their_step(test::with_skipped_steps(files), 5);
}

// Two engines of a process, whose files lie in the same directories.
TEST_P(ParameterSaves, OfTwoEnginesAtOnce) {
  const Directories directories;
  std::thread other([&] { test::expect_the_state_of_their_step(directories.in_files(GetParam()), 6); });
  test::expect_the_state_of_their_step(directories.in_files(GetParam(), {DType::kBFloat16}), 7);
  other.join();
}

TEST_P(ParameterSaves, AnUpdateWaitsForWhatIsNotSaved) {
  const Directories directories;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    test::expect_that_the_update_alone_waits(directories.in_files(GetParam(), {dtype}));
}

TEST_P(ParameterSaves, FollowOneAnotherAndLoadsAndTheEnd) {
  const Directories directories;
  for (const std::vector<Files>& some : {kAll, kAlone})
    for (const Files& files : some)
      test::expect_saves_and_loads_after_one_another(directories.in_files(GetParam(), files));
}

// Weights that are set, and what is written to gathered ones, of frozen parameters, too.
TEST_P(ParameterSaves, WhoWritesToParametersWaitsForThem) {
  const Directories directories;
  for (const bool frozen : {false, true}) {
    const Scenario scenario = directories.in_files(GetParam(), {.frozen = frozen});
    const auto sets = [](SavingRank& rank) { rank.engine->set_weights(1, 4, 0, at::full({kBallast}, 9.F)); };
    if (!frozen) test::expect_that_a_writer_waits(scenario, sets);
    test::expect_that_a_writer_waits(scenario, [](SavingRank& rank) {
      const at::NoGradGuard no_grad;
      rank.engine->gather({2}, /*to_modify=*/true);
      rank.model->params()[2][4].data().fill_(0.25);
      rank.engine->release({2}, /*modify_rank=*/0);
    });
  }
}

// Bytes of parameters with a frozen ballast that a save reads there: of those that are trained in 16 bits it has the
// master weights.
int64_t read_from_files(const Files& files, int ranks) {
  using test::kOut, test::kWidth;
  int64_t bytes = 0, left = files.max_in_memory;
  const auto add = [&](int64_t numel, bool is_frozen) {
    const int64_t shard = align_up(ceil_div(numel, int64_t{ranks}), kBlockNumel);
    if (shard <= left)
      left -= shard;
    else if (is_frozen || files.dtype == DType::kFloat32)
      bytes += shard * element_size(files.dtype);
  };
  for (int block = 0; block < test::kBlocks; ++block) {
    add(kWidth * kWidth + 3 * kWidth, false);
    add(kBallast, true);
  }
  add(kOut * kWidth + kOut + 2 * kWidth, false);
  return bytes;
}

// No parameter of a file is copied; of what stays in memory beside it, all that would be copied without.
TEST_P(ParameterSaves, CopyWhatLiesInMemoryAlone) {
  const Directories directories;
  for (const Files& files : kAll) {
    Scenario scenario = directories.in_files(GetParam(), files);
    int64_t expected = 0;
    if (files.frozen) {
      Scenario in_memory = scenario;
      in_memory.config.offload_param = {};
      expected = test::copied_by_saves(in_memory) - read_from_files(files, GetParam());
    }
    EXPECT_EQ(test::copied_by_saves(scenario), expected) << scenario.text();
  }
}

// A save reads a file that is damaged on one rank: an error of the save on every rank, and of whatever comes next; the
// checkpoint before is whole.
TEST(ParameterSave, AFileThatCannotBeReadEndsEveryRank) {
  for (const bool frozen : {false, true}) {
    for (const bool flips : {false, true}) {
      const Directories directories;
      const TemporaryDirectory root;
      const Scenario scenario = directories.in_files(3, {.frozen = frozen});
      test::Gate gate;
      std::atomic<int> saves = 0;
      at::Tensor first;
      const auto errors = run_saving(
          scenario,
          [&](SavingRank& rank) {
            rank.train_step(scenario, 0);
            rank.engine->save_checkpoint(root.path(), "first", 1);
            rank.engine->wait_for_checkpoint();
            const at::Tensor values = rank.values();
            if (rank.rank == 0) first = values;
            gate.close();
            rank.engine->save_checkpoint(root.path(), "second", 1);
            if (rank.rank == 1) {
              for (const UniqueFd& file : testing::swap_files_in(directories.parameters.path())) {
                if (flips) {
                  testing::flip_bits(file.get());
                } else {
                  ASSERT_EQ(::ftruncate(file.get(), 0), 0);
                }
              }
            }
            if (++saves == 3) gate.open();
            EXPECT_THROW(rank.engine->wait_for_checkpoint(), std::exception);
            rank.train_step(scenario, 1);
          },
          0, {}, gate.decorate());
      for (const std::string& error : errors)
        EXPECT_THAT(error, AllOf(HasSubstr("the swap file in " + directories.parameters.path()),
                                 ContainsRegex("parameters of group . of unit 'unit .'")))
            << frozen << flips;
      EXPECT_FALSE(fs::exists(root / "second"));
      const Directories others;
      EXPECT_THAT(run_saving(
                      others.in_files(3, {.frozen = frozen}),
                      [&](SavingRank& rank) {
                        EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
                        EXPECT_TRUE(rank.values().equal(first));
                      },
                      /*first_seed=*/5),
                  Each(""));
    }
  }
}

// A checkpoint that cannot be written keeps nobody.
TEST(ParameterSave, ThatCannotBeWrittenKeepsNobody) {
  const Directories directories;
  const TemporaryDirectory root;
  testing::put(root / "file", "x");
  const Scenario scenario = directories.in_files(2);
  EXPECT_THAT(run_saving(scenario,
                         [&](SavingRank& rank) {
                           rank.train_step(scenario, 0);
                           rank.engine->save_checkpoint(root / "file/under", "a", 1);
                           for (int step = 1; step < 4; ++step) rank.train_step(scenario, step);
                           EXPECT_THROW(rank.engine->wait_for_checkpoint(), IoError);
                           rank.engine->save_checkpoint(root.path(), "b", 4);
                           rank.train_step(scenario, 4);
                         }),
              Each(""));
  EXPECT_TRUE(fs::exists(root / "b"));
}

}  // namespace
}  // namespace zeroshard

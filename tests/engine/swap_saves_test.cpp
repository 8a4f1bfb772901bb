#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/interrupt.h"
#include "engine/late_saves.h"
#include "file/open_swap_files.h"
#include "file/support.h"
#include "zeroshard/error.h"

// Checkpoints in the background of optimizer states that lie in files.
namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using test::expect_same_files;
using test::late;
using test::make_scenario;
using test::run_saving;
using test::SavingRank;
using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::swap_files_in;
using testing::TemporaryDirectory;

Scenario in_files(int world_size, int stage, const TemporaryDirectory& directory) {
  Scenario scenario = make_scenario(world_size, stage);
  scenario.model.ballast = 20'000;  // several blocks with checksums
  scenario.config.offload_optimizer = {
      .device = OffloadOptimizerConfig::Device::kNvme, .nvme_path = {directory.path()}, .buffer_count = 2};
  return scenario;
}

class SwapSaves : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SwapSaves, ::testing::Values(1, 2, 3));

// The state of the save's step, however far training goes meanwhile; and training has the bits of a run that saves
// nothing.
TEST_P(SwapSaves, HaveTheStateOfTheirStepWhileTrainingGoesOn) {
  for (const int stage : {1, 2, 3}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(concat("stage ", stage, ", ", name_of(dtype)));
      const TemporaryDirectory swap;
      Scenario scenario = in_files(GetParam(), stage, swap);
      scenario.config.compute_dtype = dtype;
      scenario.config.persistence_threshold = stage == 3 ? 1500 : 0;
      scenario.model.frozen = stage != 1;
      test::expect_the_state_of_their_step(scenario, uint64_t(stage) + 1);
    }
  }
}

TEST_P(SwapSaves, AnUpdateWaitsForWhatIsNotSaved) {
  for (const int stage : {1, 3}) {
    const TemporaryDirectory swap;
    Scenario scenario = in_files(GetParam(), stage, swap);
    scenario.config.compute_dtype = DType::kBFloat16;
    test::expect_that_the_update_alone_waits(scenario);
  }
}

TEST_P(SwapSaves, FollowOneAnotherAndLoadsAndTheEnd) {
  const TemporaryDirectory swap;
  Scenario scenario = in_files(GetParam(), 2, swap);
  scenario.config.compute_dtype = DType::kBFloat16;
  test::expect_saves_and_loads_after_one_another(scenario);
}

// No state is copied, and of the weights those alone that users may write to without asking.
TEST_P(SwapSaves, CopyNoState) {
  for (const int stage : {1, 3}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const TemporaryDirectory swap, root;
      Scenario scenario = in_files(GetParam(), stage, swap);
      scenario.config.compute_dtype = dtype;
      const auto errors = run_saving(scenario, [&](SavingRank& rank) {
        rank.train_step(scenario, 0);
        rank.engine->save_checkpoint(root.path(), "a", 1);
        rank.train_step(scenario, 1);
        rank.engine->wait_for_checkpoint();
        int64_t copied = 0, weights = 0;
        for (const MemoryLine& line : rank.engine->memory()) {
          if (line.category == "checkpoint staging") {
            copied += line.measured_peak;
            EXPECT_EQ(line.planned, line.measured_peak);
          }
          if (line.category == "moments") weights = line.measured_peak / 2;
        }
        EXPECT_GT(weights, 0);
        const bool are_whole = stage < 3 || GetParam() == 1;
        EXPECT_EQ(copied, dtype == DType::kFloat32 && are_whole ? weights : 0) << stage << name_of(dtype);
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

// What was written around torch's counters of versions before the save counts; what is written after it does not.
TEST(SwapSave, HasWhatUsersWroteBeforeItAlone) {
  for (const int stage : {1, 2})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const TemporaryDirectory swap;
      Scenario scenario = in_files(2, stage, swap);
      scenario.config.compute_dtype = dtype;
      test::expect_what_users_wrote_before_it_alone(scenario);
    }
}

// States that are set wait, too.
// Others' weights are put in for a save, and taken out again: what a step makes of that does not depend on the tier.
at::Tensor values_after_a_save_of_other_weights(const Scenario& scenario, bool async) {
  const TemporaryDirectory root;
  at::Tensor result;
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    const at::NoGradGuard no_grad;
    const auto train = [&](int step) {
      const at::AutoGradMode grad(true);
      rank.train_step(scenario, step);
    };
    train(0);
    std::vector<std::pair<at::Tensor, at::Tensor>> own;
    for (const auto& unit : rank.model->params()) {
      for (const at::Tensor& param : unit) {
        own.emplace_back(param, param.clone());
        at::Tensor(param).fill_(0.125);
      }
    }
    rank.engine->save_checkpoint(root.path(), "others", 1, {}, {.async = async});
    rank.engine->wait_for_checkpoint();
    for (auto& [param, values] : own) param.copy_(values);
    train(1);
    const at::Tensor values = rank.values();
    if (rank.rank == 0) result = values;
  });
  EXPECT_THAT(errors, Each(""));
  return result;
}

TEST(SwapSave, TakesWhatIsPutBackAfterItAsElsewhere) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int ranks : {1, 3}) {
      const TemporaryDirectory swap;
      Scenario files = in_files(ranks, /*stage=*/1, swap);
      files.config.compute_dtype = dtype;
      Scenario memory = files;
      memory.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kNone;
      const at::Tensor expected = values_after_a_save_of_other_weights(memory, /*async=*/false);
      for (const bool async : {false, true}) {
        const at::Tensor values = values_after_a_save_of_other_weights(files, async);
        ASSERT_FALSE(::testing::Test::HasFailure());
        EXPECT_TRUE(values.equal(expected)) << name_of(dtype) << ", " << ranks << " ranks, async " << async;
      }
    }
  }
}

TEST(SwapSave, WhoSetsStatesWaitsForIt) {
  const TemporaryDirectory swap;
  const Scenario scenario = in_files(2, 3, swap);
  test::expect_that_a_writer_waits(scenario, [&](SavingRank& rank) {
    const auto set = rank.engine->slice(0, 0);
    if (rank.rank == 0)
      rank.engine->set_moment("units.0.0", 0, at::full({set->moments.at(0).numel()}, 9.F));
    else
      rank.engine->set_weights(1, 4, 0, at::full({scenario.model.ballast}, 9.F));
  });
}

// The file of one rank is lost when the save reads it: the save fails, and so does every rank's next step, soon.
TEST(SwapSave, AFileThatCannotBeReadEndsEveryRank) {
  for (const int stage : {1, 2, 3}) {
    const TemporaryDirectory swap, root;
    Scenario scenario = in_files(3, stage, swap);
    scenario.config.compute_dtype = DType::kBFloat16;
    std::atomic<int> saves = 0;
    std::atomic<bool> may_save = false;
    const auto wait = [&] {
      while (saves > 0 && !may_save) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    const auto errors = run_saving(
        scenario,
        [&](SavingRank& rank) {
          rank.train_step(scenario, 0);
          rank.engine->save_checkpoint(root.path(), "first", 1);
          rank.engine->wait_for_checkpoint();
          ++saves;
          rank.engine->save_checkpoint(root.path(), "second", 1);
          if (rank.rank == 1) {
            for (const UniqueFd& file : swap_files_in(swap.path())) ASSERT_EQ(::ftruncate(file.get(), 0), 0);
          }
          may_save = rank.rank == 1 || may_save;
          for (int step = 1; step < 3; ++step) rank.train_step(scenario, step);
        },
        0, {}, late(wait));
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr("the swap file in " + swap.path())) << stage;
      EXPECT_THAT(error, HasSubstr("of unit 'unit ")) << stage;
    }
    EXPECT_TRUE(fs::exists(root / "first"));
    EXPECT_FALSE(fs::exists(root / "second"));
  }
}

// A checkpoint that cannot be written, say to a full disk, is an error of the next step, and training goes on.
TEST(SwapSave, KeepsNobodyWhenItCannotBeWritten) {
  for (const int world_size : {1, 3}) {
    const TemporaryDirectory swap, root;
    Scenario scenario = in_files(world_size, 2, swap);
    testing::put(root / "file", "x");
    std::vector<at::Tensor> found{size_t(world_size)}, expected = found;
    const auto run = [&](bool saves, std::vector<at::Tensor>& values) {
      EXPECT_THAT(run_saving(scenario,
                             [&](SavingRank& rank) {
                               rank.train_step(scenario, 0);
                               if (saves) rank.engine->save_checkpoint(root / "file/under", "a", 1);
                               for (int step = 1; step < 4; ++step) rank.train_step(scenario, step);
                               if (saves) {
                                 EXPECT_THROW(rank.engine->wait_for_checkpoint(), IoError);
                               }
                               values[size_t(rank.rank)] = rank.values();
                             }),
                  Each(""));
    };
    run(false, expected);
    run(true, found);
    for (size_t rank = 0; rank < found.size(); ++rank) EXPECT_TRUE(found[rank].equal(expected[rank]));
  }
}

thread_local bool is_interrupted = false;
std::atomic<bool> interrupts = false;

// Ctrl-C on a rank whose update waits. The others, which wait for the same save or for this rank, are told.
TEST(SwapSave, AnInterruptionEndsTheWaitOnEveryRank) {
  const TemporaryDirectory swap, root;
  const Scenario scenario = in_files(2, 3, swap);
  std::atomic<bool> are_told = false;
  const auto wait = [&] {
    while (!are_told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  set_interrupt_check([] {
    if (interrupts && is_interrupted) throw std::runtime_error("interrupted by the user");
  });
  std::thread user;
  const auto errors = run_saving(
      scenario,
      [&](SavingRank& rank) {
        rank.train_step(scenario, 0);
        rank.engine->save_checkpoint(root.path(), "a", 1);
        is_interrupted = rank.rank == 1;
        if (rank.rank == 0) {
          user = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until both have come to the update
            interrupts = true;
          });
        }
        try {
          rank.train_step(scenario, 1);
        } catch (const CommError&) {
          are_told = true;  // before the save could go on
          throw;
        }
      },
      0, {}, late(wait));
  user.join();
  interrupts = false;
  set_interrupt_check(nullptr);
  EXPECT_THAT(errors[1], HasSubstr("interrupted by the user"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 was interrupted while it waited for a checkpoint to be read"));
  EXPECT_FALSE(fs::exists(root / "a"));
}

}  // namespace
}  // namespace zeroshard

// Checkpoints in the background beside simulated devices, of optimizer states and parameters that lie in files: what is
// in files is read where it lies, what is on the device is copied.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "accelerator/offload_support.h"
#include "engine/late_saves.h"
#include "file/open_swap_files.h"
#include "file/support.h"
#include "zeroshard/error.h"

namespace zeroshard::accelerator {
namespace {

using test::SavingRank;
using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr int64_t kBallast = 20'000;

// What lies in files beside the states; or alone, with states on the device.
enum class Parameters : uint8_t { kOnDevice, kOnHost, kInFiles, kFrozenInFiles, kAloneOnHost, kAloneInFiles };

struct Place {
  int stage;
  DType dtype;
  Parameters parameters = Parameters::kOnDevice;
};

class OffloadSaves : public ::testing::TestWithParam<std::tuple<Schedule, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/8); }
  void TearDown() override {
    end_on_devices();
    expect_no_race(test::make_scenario(1, 3));
  }
  static int ranks() { return std::get<1>(GetParam()); }
  Scenario in_files(const Place& place) const {
    using Device = OffloadDevice;
    Scenario scenario = test::make_scenario(ranks(), place.stage);
    scenario.config.compute_dtype = place.dtype;
    scenario.model.ballast = kBallast;
    scenario.model.frozen_ballast = place.parameters == Parameters::kFrozenInFiles;
    OffloadParamConfig& param = scenario.config.offload_param;
    if (place.parameters == Parameters::kOnHost || place.parameters == Parameters::kAloneOnHost) {
      param.device = Device::kCpu;
    } else if (place.parameters != Parameters::kOnDevice) {
      param = {.device = Device::kNvme, .nvme_path = {swap_.path()}, .buffer_count = 2};
      param.max_in_memory = 0;
    }
    const bool are_alone =
        place.parameters == Parameters::kAloneOnHost || place.parameters == Parameters::kAloneInFiles;
    if (place.parameters != Parameters::kFrozenInFiles && !are_alone)
      scenario.config.offload_optimizer = {.device = Device::kNvme, .nvme_path = {swap_.path()}, .buffer_count = 2};
    return on_devices(std::move(scenario));
  }

  TemporaryDirectory swap_;
};

INSTANTIATE_TEST_SUITE_P(
    Schedules, OffloadSaves,
    ::testing::ValuesIn(cases_of_one_stage({{Schedule::kLazy, 1}, {Schedule::kLate, 2}, {Schedule::kLazy, 2}})));

const std::vector<Place> kAll = {{1, DType::kFloat32},
                                 {2, DType::kBFloat16},
                                 {2, DType::kFloat32},
                                 {3, DType::kFloat32},
                                 {3, DType::kFloat32, Parameters::kOnHost},
                                 {3, DType::kBFloat16, Parameters::kOnHost},
                                 {3, DType::kFloat32, Parameters::kInFiles},
                                 {3, DType::kBFloat16, Parameters::kInFiles},
                                 {3, DType::kFloat32, Parameters::kFrozenInFiles},
                                 {3, DType::kBFloat16, Parameters::kFrozenInFiles}};

// Copied are states and master weights of the device.
TEST_P(OffloadSaves, OfParametersThatLeftAloneHaveTheStateOfTheirStep) {
  for (const Parameters parameters : {Parameters::kAloneOnHost, Parameters::kAloneInFiles}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Scenario scenario = in_files({3, dtype, parameters});
      scenario.model.frozen = scenario.model.unused = true;
      scenario.config.persistence_threshold = 1500;
      test::expect_the_state_of_their_step(scenario, 3);
      test::expect_saves_and_loads_after_one_another(in_files({3, dtype, parameters}));
    }
    test::expect_the_state_of_their_step(test::with_skipped_steps(in_files({3, DType::kFloat16, parameters})), 5);
  }
}

TEST_P(OffloadSaves, HaveTheStateOfTheirStepWhileTrainingGoesOn) {
  for (const Place& place : kAll) {
    Scenario scenario = in_files(place);
    scenario.model.frozen = place.stage > 1;
    scenario.model.unused = true;
    scenario.config.persistence_threshold = place.stage == 3 ? 1500 : 0;
    test::expect_the_state_of_their_step(scenario, 3);
  }
}

TEST_P(OffloadSaves, StepsThatAreSkippedChangeNothing) {
  const Scenario files = in_files({3, DType::kFloat16, Parameters::kInFiles});
  test::expect_the_state_of_their_step(test::with_skipped_steps(files), 5);
}

TEST_P(OffloadSaves, AnUpdateWaitsForWhatIsNotSaved) {
  for (const Place& place : kAll)
    if (place.parameters != Parameters::kFrozenInFiles) test::expect_that_the_update_alone_waits(in_files(place));
}

TEST_P(OffloadSaves, FollowOneAnotherAndLoadsAndTheEnd) {
  for (const Place& place : kAll) test::expect_saves_and_loads_after_one_another(in_files(place));
}

TEST_P(OffloadSaves, WhoWritesWaitsForWhatIsNotSaved) {
  const auto sets = [](SavingRank& rank) { rank.engine->set_weights(1, 4, 0, at::full({kBallast}, 9.F)); };
  const auto gathers = [](SavingRank& rank) {
    const at::NoGradGuard no_grad;
    rank.engine->gather({2}, /*to_modify=*/true);
    rank.model->params()[2][4].data().fill_(0.25);
    rank.engine->release({2}, /*modify_rank=*/0);
  };
  for (const Place& place : kAll) {
    if (place.stage < 3) continue;
    const bool is_frozen = place.parameters == Parameters::kFrozenInFiles;
    if (!is_frozen) test::expect_that_a_writer_waits(in_files(place), sets);
    test::expect_that_a_writer_waits(in_files(place), gathers);
  }
}

// What users write to whole parameters before the save counts, and what they write after it does not.
TEST_P(OffloadSaves, HaveWhatUsersWroteBeforeThemAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    test::expect_what_users_wrote_before_it_alone(in_files({2, dtype}));
}

// Of what lies on the device; whole fp32 parameters are their own copy of the master weights in files.
TEST_P(OffloadSaves, CopyNoFile) {
  for (const Place& place : kAll) {
    if (place.parameters == Parameters::kFrozenInFiles) continue;
    const int64_t copied = test::copied_by_saves(in_files(place));
    const bool are_whole = place.stage < 3 || (ranks() == 1 && place.parameters == Parameters::kOnDevice);
    if (!are_whole || place.dtype != DType::kFloat32) {
      EXPECT_EQ(copied, 0);
    } else {
      Scenario whole = in_files(place);
      whole.config.offload_optimizer = {};
      EXPECT_EQ(3 * copied, test::copied_by_saves(whole));
    }
  }
}

// A limit that leaves no room for copies: the checkpoint is written before save_checkpoint returns.
TEST_P(OffloadSaves, WithoutRoomForCopiesAreWrittenAtOnce) {
  Scenario scenario = in_files({2, DType::kFloat32});
  int64_t on_host = 0;
  EXPECT_THAT(run_saving(scenario,
                         [&](SavingRank& rank) {
                           int64_t planned = 0;
                           for (const MemoryLine& line : rank.engine->memory())
                             if (line.tier == "host") planned += line.planned;
                           if (rank.rank == 0) on_host = planned;
                         }),
              Each(""));
  for (const int64_t room : {int64_t{0}, int64_t{1} << 20}) {
    const TemporaryDirectory root;
    scenario.config.offload.host_memory = on_host + room;
    test::Gate gate(room == 0);
    const auto errors = run_saving(
        scenario,
        [&](SavingRank& rank) {
          rank.train_step(scenario, 0);
          rank.engine->save_checkpoint(root.path(), "a", 1);
          EXPECT_EQ(std::filesystem::exists(root / "a"), room == 0);
          gate.open();
          rank.train_step(scenario, 1);
        },
        0, {}, gate.decorate());
    EXPECT_THAT(errors, Each(""));
    EXPECT_TRUE(std::filesystem::exists(root / "a"));
  }
}

// The files of one rank are lost when the save reads them.
TEST_P(OffloadSaves, AFileThatCannotBeReadEndsEveryRank) {
  for (const Place& place : kAll) {
    const TemporaryDirectory root;
    const Scenario scenario = in_files(place);
    test::Gate gate;
    std::atomic<int> saves = 0;
    const auto errors = run_saving(
        scenario,
        [&](SavingRank& rank) {
          rank.train_step(scenario, 0);
          rank.engine->save_checkpoint(root.path(), "first", 1);
          rank.engine->wait_for_checkpoint();
          gate.close();
          rank.engine->save_checkpoint(root.path(), "second", 1);
          if (rank.rank == 0) {
            for (const UniqueFd& file : testing::swap_files_in(swap_.path())) ASSERT_EQ(::ftruncate(file.get(), 0), 0);
          }
          if (++saves == ranks()) gate.open();
          EXPECT_THROW(rank.engine->wait_for_checkpoint(), std::exception);
          rank.train_step(scenario, 1);
        },
        0, {}, gate.decorate());
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("the swap file in " + swap_.path()));
    EXPECT_TRUE(std::filesystem::exists(root / "first"));
    EXPECT_FALSE(std::filesystem::exists(root / "second"));
  }
}

}  // namespace
}  // namespace zeroshard::accelerator

// Checkpoints of every placement. A save in the background reads files where they lie, and copies what is on the
// device.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>

#include "accelerator/placements.h"
#include "engine/late_saves.h"
#include "file/open_swap_files.h"

namespace zeroshard::accelerator {
namespace {

using test::SavingRank;
using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Places whose states are in files as a whole, so that a save copies none of them.
class PlacementsOfStatesInFiles : public Placements {};
INSTANTIATE_TEST_SUITE_P(Files, PlacementsOfStatesInFiles, placement_cases([](const PlaceCase& of) {
                           return of.place.states == OffloadDevice::kNvme && !of.place.is_shared();
                         }),
                         name_of_case);

class PlacementsOfShardsInFiles : public Placements {};
INSTANTIATE_TEST_SUITE_P(Files, PlacementsOfShardsInFiles, placement_cases([](const PlaceCase& of) {
                           return of.place.states == OffloadDevice::kNvme && !of.place.is_shared() && of.stage == 3;
                         }),
                         name_of_case);

class PlacementsOfWholeParameters : public Placements {};
INSTANTIATE_TEST_SUITE_P(Whole, PlacementsOfWholeParameters,
                         placement_cases([](const PlaceCase& of) { return of.stage < 3; }), name_of_case);

// Returns the next place in the table whose moments have the same dtype.
const Place& next_place(const Place& place) {
  const std::vector<Place>& all = all_places();
  size_t at = 0;
  while (all[at].name != place.name) ++at;
  do {
    at = (at + 1) % all.size();
  } while (all[at].moments != place.moments);
  return all[at];
}

// From the CPU at another stage, back to it, and from place to place, with frozen parameters and at once or in the
// background. A pass of evaluation is under way, whose gathers the load must not change.
TEST_P(Placements, LoadWhatOthersSave) {
  Scenario here = scenario(), on_cpu = scenario();
  here.model.frozen = on_cpu.model.frozen = true;
  on_cpu.config.stage = stage() % 3 + 1;
  Scenario elsewhere = here;
  elsewhere.config.stage = 3;
  const Scenario placed_here = placed(here, place(), /*buffer_count=*/5);
  const auto expect_the_same_end = [&](const Scenario& saving, const Scenario& loading) {
    const TemporaryDirectory root;
    const SavedRun run = train_and_save(saving, root.path(), {.async = GetParam().dtype == DType::kFloat32});
    expect_same_end(loading, run, [&](SavingRank& rank) { load_under_a_pass(rank, loading, root.path()); });
  };
  expect_the_same_end(on_cpu, placed_here);
  expect_the_same_end(placed(here), on_cpu);
  expect_the_same_end(placed(elsewhere, next_place(place())), placed_here);
}

// While training goes on. Some units are small, and some parameters are frozen or have no gradient.
TEST_P(Placements, SaveTheStateOfTheirStep) {
  Scenario mixed = placed(scenario());
  mixed.model.frozen = mixed.model.unused = true;
  mixed.config.persistence_threshold = stage() == 3 ? 1500 : 0;
  test::expect_the_state_of_their_step(mixed, 3);
}

TEST_P(Placements, SaveAfterStepsThatAreSkipped) {
  test::expect_the_state_of_their_step(test::with_skipped_steps(placed(scenario(DType::kFloat16))), 5);
}

TEST_P(Placements, SaveAndLoadAgainAndAgain) {
  test::expect_saves_and_loads_after_one_another(placed(scenario()));
}

// A save has what users wrote to whole parameters before it, and nothing that they write after it.
TEST_P(PlacementsOfWholeParameters, SaveWhatUsersWroteBeforeAlone) {
  test::expect_what_users_wrote_before_it_alone(placed(scenario()));
}

// Weights are set, and whole parameters written, right before a save and right after it.
TEST_P(Placements, SaveWhatTheStateWas) {
  const Scenario saving = placed(scenario());
  for (const bool async : {false, true}) {
    const TemporaryDirectory root;
    const auto write = [&](SavingRank& rank, double factor) {
      const at::NoGradGuard no_grad;
      for (const size_t unit : {size_t{1}, size_t{3}})
        if (stage() < 3) rank.model->params()[unit][4].data().mul_(factor);
    };
    const auto errors = run_saving(saving, [&](SavingRank& rank) {
      rank.train_step(saving, 0);
      write(rank, 1.5);
      const at::Tensor then = rank.values();
      SaveOptions options;
      options.async = async;
      rank.engine->save_checkpoint(root.path(), "a", 1, {}, options);
      write(rank, 0.5);
      rank.engine->set_weights(2, 0, 0, at::full({test::kWidth * test::kWidth}, 0.5, at::kFloat));
      rank.train_step(saving, 1);
      rank.engine->wait_for_checkpoint();
      EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
      EXPECT_TRUE(rank.values().equal(then));
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST_P(PlacementsOfStatesInFiles, LetTheUpdateAloneWaitForASave) {
  test::expect_that_the_update_alone_waits(placed(scenario()));
}

TEST_P(PlacementsOfShardsInFiles, LetWritersWaitForASave) {
  test::expect_that_a_writer_waits(
      placed(scenario()), [](SavingRank& rank) { rank.engine->set_weights(1, 4, 0, at::full({20'000}, 9.F)); });
  test::expect_that_a_writer_waits(placed(scenario()), [](SavingRank& rank) {
    const at::NoGradGuard no_grad;
    rank.engine->gather({2}, /*to_modify=*/true);
    rank.model->params()[2][4].data().fill_(0.25);
    rank.engine->release({2}, /*modify_rank=*/0);
  });
}

// A save copies what lies on the device: whole fp32 parameters, which are their own copy of the master weights in
// files.
TEST_P(PlacementsOfStatesInFiles, CopyNoFileToSaveIt) {
  const int64_t copied = test::copied_by_saves(placed(scenario()));
  const bool are_whole = stage() < 3 || (ranks() == 1 && !place().has_offloaded_parameters());
  if (!are_whole || GetParam().dtype != DType::kFloat32) {
    EXPECT_EQ(copied, 0);
  } else if (place().moments == DType::kFloat32) {
    EXPECT_EQ(3 * copied, test::copied_by_saves(on_devices(scenario())));
  }
}

// The files of one rank are lost when the save reads them.
TEST_P(PlacementsOfStatesInFiles, EndEveryRankIfASaveCannotReadThem) {
  must_not_wait_ = false;
  const TemporaryDirectory root;
  const Scenario saving = placed(scenario());
  test::Gate gate;
  std::atomic<int> saves = 0;
  const auto errors = run_saving(
      saving,
      [&](SavingRank& rank) {
        rank.train_step(saving, 0);
        rank.engine->save_checkpoint(root.path(), "first", 1);
        rank.engine->wait_for_checkpoint();
        gate.close();
        rank.engine->save_checkpoint(root.path(), "second", 1);
        if (rank.rank == 0) {
          for (const auto* const directory : {&directory_, &other_})
            for (const UniqueFd& file : testing::swap_files_in(directory->path()))
              ASSERT_EQ(::ftruncate(file.get(), 0), 0);
        }
        if (++saves == ranks()) gate.open();
        EXPECT_THROW(rank.engine->wait_for_checkpoint(), std::exception);
        rank.train_step(saving, 1);
      },
      0, {}, gate.decorate());
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("the swap file in "));
  EXPECT_TRUE(std::filesystem::exists(root / "first"));
  EXPECT_FALSE(std::filesystem::exists(root / "second"));
}

}  // namespace
}  // namespace zeroshard::accelerator

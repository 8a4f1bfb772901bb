// Engines on simulated devices whose shards of parameters lie in files: the same bits, in the planned memory of the
// device, the host and the files, and no wait that is missing.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "accelerator/offload_support.h"
#include "base/align.h"
#include "file/open_swap_files.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::Result;
using test::Scenario;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

struct ParamFiles {
  int buffer_count = 1;
  int64_t max_in_memory = 0;
  bool states = true;  // go, too
};

class ParamFileOffload : public ::testing::TestWithParam<std::tuple<Schedule, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/6); }
  void TearDown() override { end_on_devices(); }
  static int ranks() { return std::get<1>(GetParam()); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(ranks(), /*stage=*/3);
    made.config.compute_dtype = dtype;
    made.model.ballast = 20'000;  // so that a shard has several blocks
    made.steps = 3;
    return made;
  }
  Scenario in_files(Scenario scenario, const ParamFiles& files = {}) const {
    OffloadParamConfig& param = scenario.config.offload_param;
    param = {.device = OffloadParamConfig::Device::kNvme, .nvme_path = paths(), .buffer_count = files.buffer_count};
    param.max_in_memory = files.max_in_memory;
    if (files.states)
      scenario.config.offload_optimizer = {
          .device = OffloadOptimizerConfig::Device::kNvme, .nvme_path = paths(), .buffer_count = 2};
    return on_devices(std::move(scenario));
  }
  Result expect_the_same_bits(const Scenario& scenario, const ParamFiles& files = {}) const {
    return expect_bits_of(scenario, in_files(scenario, files));
  }
  std::vector<std::string> paths() const { return {one_.path(), other_.path()}; }

  TemporaryDirectory one_, other_;
};

INSTANTIATE_TEST_SUITE_P(
    Schedules, ParamFileOffload,
    ::testing::ValuesIn(cases_of_one_stage({{Schedule::kLazy, 1}, {Schedule::kLazy, 2}, {Schedule::kLate, 2}})));

TEST_P(ParamFileOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int buffer_count : {1, 3}) {
      const Result result = expect_the_same_bits(scenario(dtype), {.buffer_count = buffer_count});
      EXPECT_EQ(planned(result, "parameters", "device") + planned(result, "parameters", "host"), 0);
      EXPECT_GT(planned(result, "parameters", "file"), 0);
      EXPECT_EQ(planned(result, "pinned", "host"), 0);  // nothing is copied back
      EXPECT_EQ(planned(result, "master weights", "file") > 0, dtype != DType::kFloat32);
      EXPECT_GT(planned(result, "swap", "host"), 0);
      EXPECT_EQ(planned(result, "swap", "device"), 0);
    }
  }
  for (const std::string& path : paths()) EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST_P(ParamFileOffload, AccumulatesGradients) {
  for (const Scenario& each : accumulating(scenario(DType::kBFloat16))) expect_the_same_bits(each);
}

TEST_P(ParamFileOffload, SkipsStepsThatOverflow) {
  expect_skipped_steps(scenario(DType::kFloat16), [&](const Scenario& of) { return in_files(of); });
}

// Shards longer than a chunk are copied in pieces; slots of the ring are used again within a pass, while their last
// users may still be busy.
TEST_P(ParamFileOffload, ShardsOfSeveralChunks) {
  Scenario large = scenario(DType::kFloat32);
  large.model.ballast = int64_t{5} << 19;
  large.steps = 2;
  std::vector<at::Tensor> values;
  for (const int buffer_count : {0, 1, 2}) {
    test::ThreadWorld world(buffer_count > 0 ? in_files(large, {.buffer_count = buffer_count}) : on_devices(large));
    ASSERT_THAT(world.run([](test::Rank& rank) { train_without_waits(rank, {}); }), Each(""));
    values.push_back(world.rank(0).result.values);
    EXPECT_TRUE(values[0].equal(values.back())) << buffer_count << " buffers, " << large.text();
  }
  expect_no_race(large);
}

// Small units and those of a rule stay on the device; frozen parameters leave it, and those that no forward reads.
TEST_P(ParamFileOffload, UnitsOfAllKindsBesideEachOther) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario mixed = scenario(dtype);
    mixed.model.frozen = mixed.model.unused = true;
    mixed.config.persistence_threshold = 1500;  // the head
    mixed.config.placement = {{"unit 3", /*replicated=*/true}};
    const Result result = expect_the_same_bits(mixed, {.buffer_count = 2});
    EXPECT_GT(planned(result, "parameters", "device"), 0);
    EXPECT_GT(planned(result, "parameters", "file"), 0);
    EXPECT_GT(planned(result, "master weights", "file"), 0);
  }
}

// What stays in memory stays on the host.
TEST_P(ParamFileOffload, SomeMayStayOnTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    int64_t before = -1;
    for (const int64_t most : {0, 30'000, 1'000'000}) {
      const Result result = expect_the_same_bits(scenario(dtype), {.max_in_memory = most});
      const int64_t on_host = planned(result, "parameters", "host");
      EXPECT_LE(on_host, most * element_size(dtype));
      EXPECT_GT(on_host, before);
      before = on_host;
      EXPECT_EQ(planned(result, "parameters", "device"), 0);
      EXPECT_EQ(planned(result, "parameters", "file") == 0, most == 1'000'000);
      EXPECT_EQ(planned(result, "master weights", "host") + planned(result, "master weights", "device"), 0);
    }
  }
}

// The optimizer's states stay on the device, and fp32 parameters with them: frozen ones alone leave.
TEST_P(ParamFileOffload, FrozenParametersLeaveAlone) {
  for (const int64_t most : {0, 30'000}) {
    Scenario frozen = scenario();
    frozen.model.frozen_ballast = true;
    const Scenario alone = in_files(frozen, {.max_in_memory = most, .states = false});
    const Result expected = test::train(on_devices(frozen)), result = test::train(alone);
    ASSERT_FALSE(HasFailure());
    EXPECT_TRUE(result.values.equal(expected.values));
    expect_as_planned(alone, result);
    EXPECT_GT(planned(result, "parameters", "file"), 0);
    EXPECT_EQ(planned(result, "parameters", "host") > 0, most > 0);
    EXPECT_EQ(planned(result, "master weights", "device"), planned(expected, "master weights", "device"));
    EXPECT_TRUE(values_of_an_optimizer_outside(on_devices(frozen), /*on_host=*/false)
                    .equal(values_of_an_optimizer_outside(alone, /*on_host=*/false)));
    expect_no_race(alone);
  }
}

TEST_P(ParamFileOffload, OptimizersWithoutStatesAndRunsWithoutPrefetch) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario plain = scenario(dtype);
    plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
    plain.config.optimizer->momentum = 0;
    expect_the_same_bits(plain);
    plain = scenario(dtype);
    plain.config.prefetch_numel = 0;
    plain.config.overlap_comm = false;
    expect_the_same_bits(plain);
  }
}

TEST_P(ParamFileOffload, UnitsThatRanksLeaveOut) {
  Scenario leaves_out = scenario(DType::kBFloat16);
  leaves_out.model.unused = true;
  leaves_out.steps = 5;
  leaves_out.skip = [](int, int step, size_t unit) { return step % 3 == 1 && unit == 2; };
  const Result expected = test::train(on_devices(leaves_out));
  EXPECT_TRUE(expected.values.equal(test::train(in_files(leaves_out, {.buffer_count = 3})).values));
  leaves_out.skip = {};
  leaves_out.counts_aside = [](int rank, int step) { return (rank + step) % 2 == 0; };
  const Result aside = test::train(on_devices(leaves_out));
  EXPECT_TRUE(aside.values.equal(test::train(in_files(leaves_out)).values));
  expect_no_race(leaves_out);
}

// The weights of a rank change while a pass that needs the old ones is under way.
TEST_P(ParamFileOffload, APassHasTheWeightsThatItBeganWith) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Scenario offloads = in_files(scenario(dtype), {.buffer_count = 5});
    expect_old_weights_whatever_changes(on_devices(scenario(dtype)), offloads);
  }
}

TEST_P(ParamFileOffload, StreamsOfTheUsersGiveTheSameBits) {
  expect_the_same_bits_on_own_streams(in_files(scenario(DType::kBFloat16)));
}

// As long as there are buffers.
TEST_P(ParamFileOffload, TheHostWaitsForTheAgreementAlone) {
  expect_a_wait_for_the_agreement_alone(in_files(scenario(DType::kBFloat16), {.buffer_count = 5}));
}

TEST_P(ParamFileOffload, AnEngineMayGoAtAnyTime) {
  for (const int buffer_count : {1, 5})
    expect_an_engine_may_go(in_files(scenario(DType::kBFloat16), {.buffer_count = buffer_count}));
}

TEST_P(ParamFileOffload, ReturnsItsUnits) {
  expect_returned_units(in_files(scenario(DType::kBFloat16)));
}

TEST_P(ParamFileOffload, MemoryThatCannotBePinnedGivesTheSameBits) {
  const Scenario made = in_files(scenario(DType::kBFloat16), {.max_in_memory = 30'000});
  Scenario pageable = made;
  pageable.config.offload_param.pin_memory = pageable.config.offload_optimizer.pin_memory = false;
  expect_bits_without_pinning(made, pageable);
}

// Between the files of a device and a run on the CPU, or on a device without offload, at another stage, both ways; with
// frozen parameters, and a pass under way whose gathers the load must not change.
TEST_P(ParamFileOffload, CheckpointsGoBetweenTiers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool saves_from_files : {false, true}) {
      for (const bool other_is_cpu : {false, true}) {
        const TemporaryDirectory root;
        Scenario made = scenario(dtype), other = scenario(dtype);
        made.model.frozen = other.model.frozen = true;
        other.config.stage = 2;
        if (!other_is_cpu) other = on_devices(std::move(other));
        const Scenario in_all_buffers = in_files(made, {.buffer_count = 5});  // what a pass copies stays in them
        const Scenario saving = saves_from_files ? in_files(made) : other;
        const Scenario loading = saves_from_files ? other : in_all_buffers;
        const SavedRun run = train_and_save(saving, root.path(), {.async = true});
        expect_same_end(loading, run, [&](test::SavingRank& rank) { load_under_a_pass(rank, loading, root.path()); });
      }
    }
  }
  expect_no_race(scenario());
}

// Frozen ones in files alone: saved and loaded with what lies on the device.
TEST_P(ParamFileOffload, CheckpointsHaveFrozenParametersOfFiles) {
  const TemporaryDirectory root;
  Scenario made = scenario(DType::kBFloat16);
  made.model.frozen_ballast = true;
  const Scenario alone = in_files(made, {.states = false});
  const SavedRun run = train_and_save(alone, root.path(), {.async = true});
  expect_same_end(alone, run,
                  [&](test::SavingRank& rank) { EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt); });
  expect_no_race(alone);
}

// Frozen ones, too, which nobody writes after the start.
TEST_P(ParamFileOffload, DamageOnOneRankEndsEveryRankWithTheUnit) {
  for (const bool flips : {true, false}) {
    for (const bool states : {true, false}) {
      Scenario plain = scenario();
      plain.model.frozen_ballast = true;
      test::ThreadWorld world(in_files(plain, {.states = states}));
      const std::vector<std::string> errors = world.run([&](test::Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        rank.train_step(0);
        rank.engine->gather({2});  // so that the only buffer has another shard than the first to be needed
        rank.engine->release({2});
        rank.reduce.host().barrier("before");
        if (rank.reduce.rank() == 0) {
          for (const UniqueFd& file : testing::swap_files_in(one_.path())) {
            if (flips) {
              testing::flip_bits(file.get());
            } else {
              ASSERT_EQ(::ftruncate(file.get(), 0), 0);
            }
          }
        }
        rank.reduce.host().barrier("after");
        for (int step = 1; step < 3; ++step) rank.train_step(step);
        rank.reduce.host().barrier("end");
      });
      for (const std::string& error : errors) {
        EXPECT_THAT(error, AllOf(ContainsRegex("cannot (read|use what was read from) the swap file in "),
                                 HasSubstr(one_.path()), ContainsRegex("parameters of group . of unit 'unit .'")))
            << "states " << states << ", flips " << flips;
      }
    }
  }
}

}  // namespace
}  // namespace zeroshard::accelerator

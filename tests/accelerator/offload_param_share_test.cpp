// Engines on simulated devices whose shards of parameters lie on the host or in files, with a part of their optimizer
// states: the host updates this part where it lies, and the device sends what it has updated of the rest.
#include <gmock/gmock.h>
#include <unistd.h>

#include "accelerator/offload_support.h"
#include "engine/late_saves.h"
#include "file/open_swap_files.h"
#include "file/support.h"
#include "zeroshard/error.h"

namespace zeroshard::accelerator {
namespace {

using test::Result;
using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Where parameters lie, and where the first of their states.
struct SharedPlaces {
  OffloadDevice parameters = OffloadDevice::kCpu;
  OffloadDevice states = OffloadDevice::kCpu;
};
constexpr OffloadDevice kHost = OffloadDevice::kCpu, kFile = OffloadDevice::kNvme;
std::string tier_of(OffloadDevice place) {
  return place == kHost ? "host" : "file";
}

// What a run may have besides.
struct ShareFiles {
  double ratio = 0.3;
  int buffer_count = 2;
  int64_t max_in_memory = 0;
};

using ShareCase = std::tuple<Schedule, int, SharedPlaces>;

class ParamShareOffload : public ::testing::TestWithParam<ShareCase> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/31); }
  void TearDown() override { end_on_devices(); }
  static int ranks() { return std::get<1>(GetParam()); }
  static const SharedPlaces& places() { return std::get<2>(GetParam()); }
  static bool are_in_files() { return places().parameters == kFile; }
  static Scenario scenario(DType dtype = DType::kBFloat16) {
    Scenario made = test::make_scenario(ranks(), /*stage=*/3);
    made.config.compute_dtype = dtype;
    made.model.ballast = 20'000;  // so that a shard has several blocks
    made.steps = 3;
    return made;
  }
  Scenario share(Scenario scenario, const ShareFiles& files = {}) const {
    OffloadParamConfig& param = scenario.config.offload_param;
    param = {.device = places().parameters, .nvme_path = {directory_.path()}, .buffer_count = files.buffer_count};
    param.max_in_memory = files.max_in_memory;
    scenario.config.offload_optimizer = {.device = places().states,
                                         .ratio = files.ratio,
                                         .nvme_path = {directory_.path()},
                                         .buffer_count = files.buffer_count};
    return on_devices(std::move(scenario));
  }
  Result expect_the_same_bits(const Scenario& scenario, const ShareFiles& files = {}) const {
    return expect_bits_of(scenario, share(scenario, files));
  }

  TemporaryDirectory directory_;
};

std::vector<ShareCase> share_cases() {
  if (!testing::release()) {
    return {{Schedule::kLazy, 1, {kHost, kHost}},
            {Schedule::kLazy, 3, {kHost, kHost}},
            {Schedule::kLate, 2, {kHost, kFile}},
            {Schedule::kLazy, 2, {kFile, kHost}},
            {Schedule::kLate, 2, {kFile, kFile}}};
  }
  std::vector<ShareCase> all;
  for (const auto& [schedule, ranks] : cases_of_one_stage({}))
    for (const OffloadDevice parameters : {kHost, kFile})
      for (const OffloadDevice states : {kHost, kFile})
        all.emplace_back(schedule, ranks, SharedPlaces{parameters, states});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Schedules, ParamShareOffload, ::testing::ValuesIn(share_cases()));

// All parameters have left the device, and the states of as many as the ratio says, in whole blocks.
TEST_P(ParamShareOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const double ratio : {0.3, 0.75}) {
    for (const int64_t accumulation : {1, 3}) {
      if (!testing::release() && (ratio < 0.5) == (accumulation > 1)) continue;
      Scenario each = scenario();
      each.config.shard_one_rank = true;
      each.config.grad_accumulation_steps = accumulation;
      const Result result = expect_the_same_bits(each, {.ratio = ratio});
      const Result without = test::train(on_devices(each));
      const auto all = [&](const std::string& category) { return planned(without, category, "device"); };
      EXPECT_EQ(planned(result, "parameters", "device"), 0);
      EXPECT_EQ(planned(result, "parameters", tier_of(places().parameters)), all("parameters"));
      for (const std::string category : {"moments", "master weights"}) {
        const int64_t away = planned(result, category, tier_of(places().states));
        EXPECT_GE(double(away), ratio * double(all(category))) << category;
        EXPECT_EQ(planned(result, category, "device"), all(category) - away) << category;
        EXPECT_GT(planned(result, category, "device"), 0) << category;
      }
      EXPECT_EQ(planned(result, "gradients", "device"), all("gradients"));
      EXPECT_GT(planned(result, "pinned", "host"), 0);  // gradients come, and parameters do not go back
    }
  }
}

// At the borders of blocks, and where a group has fewer elements than one: from one block to all.
TEST_P(ParamShareOffload, BordersAtTheFirstAndTheLastBlock) {
  for (const double ratio : {0.0001, 0.9}) expect_the_same_bits(scenario(), {.ratio = ratio});
  Scenario small = scenario();
  small.model.ballast = 0;
  const Result result = expect_the_same_bits(small, {.ratio = 0.9999});  // a block has all
  EXPECT_EQ(planned(result, "moments", "device"), 0);
  EXPECT_EQ(planned(result, "parameters", "device"), 0);
}

TEST_P(ParamShareOffload, AccumulatesInHalfPrecision) {
  for (Scenario each : accumulating(scenario(DType::kFloat16))) {
    each.config.fp16.enabled = true;
    each.config.fp16.initial_scale_power = 4;
    expect_the_same_bits(each, {.ratio = 0.75});
  }
}

TEST_P(ParamShareOffload, SkipsStepsThatOverflow) {
  expect_skipped_steps(scenario(DType::kFloat16), [&](const Scenario& of) { return share(of); });
}

// Small units and those of a rule stay on the device; frozen parameters leave with the others, and those that no
// forward reads: what the host updates of a unit may have no gradient.
TEST_P(ParamShareOffload, UnitsOfAllKindsBesideEachOther) {
  Scenario mixed = scenario();
  mixed.model.frozen = mixed.model.unused = true;
  mixed.config.persistence_threshold = 1500;  // the head
  mixed.config.placement = {{"unit 3", /*replicated=*/true}};
  const Result result = expect_the_same_bits(mixed, {.ratio = 0.75});
  EXPECT_GT(planned(result, "parameters", "device"), 0);
  EXPECT_GT(planned(result, "parameters", tier_of(places().parameters)), 0);
  Scenario leaves_out = scenario();
  leaves_out.steps = 5;
  leaves_out.skip = [](int, int step, size_t unit) { return step % 3 == 1 && unit == 2; };
  const Result expected = test::train(on_devices(leaves_out));
  EXPECT_TRUE(expected.values.equal(test::train(share(leaves_out)).values));
  expect_no_race(leaves_out);
}

// They are the master weights of the part that the device updates: frozen ones alone leave.
TEST_P(ParamShareOffload, ParametersOf32BitsStay) {
  for (const bool some_are_frozen : {false, true}) {
    Scenario wide = scenario(DType::kFloat32);
    wide.model.frozen_ballast = some_are_frozen;
    const Result without = test::train(on_devices(wide));
    ::testing::internal::CaptureStderr();
    const Result result = test::train(share(wide));
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("offload_optimizer.ratio to 1"));
    EXPECT_TRUE(result.values.equal(without.values));
    expect_as_planned(wide, result);
    expect_no_race(wide);
    EXPECT_GT(planned(result, "parameters", "device"), 0);
    EXPECT_EQ(planned(result, "parameters", tier_of(places().parameters)) > 0, some_are_frozen);
    EXPECT_GT(planned(result, "moments", tier_of(places().states)), 0);
  }
}

TEST_P(ParamShareOffload, OptimizersWithoutMomentsAndRunsWithoutPrefetch) {
  Scenario plain = scenario();
  plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
  plain.config.optimizer->momentum = 0;
  expect_the_same_bits(plain);
  plain = scenario();
  plain.config.prefetch_numel = 0;
  plain.config.overlap_comm = false;
  expect_the_same_bits(plain, {.buffer_count = 1});
}

// What stays in memory stays on the host; the device sends to both.
TEST_P(ParamShareOffload, SomeMayStayOnTheHost) {
  if (!are_in_files()) return;
  const Result result = expect_the_same_bits(scenario(), {.buffer_count = 1, .max_in_memory = 30'000});
  EXPECT_GT(planned(result, "parameters", "host"), 0);
  EXPECT_GT(planned(result, "parameters", "file"), 0);
}

// Large units: buffers of pieces, of which a shard may have several, are used again while they are still sent.
TEST_P(ParamShareOffload, BuffersAreUsedAgain) {
  Scenario large = scenario();
  const bool has_pieces = ranks() == 1;  // they take a while
  large.model.ballast = has_pieces ? int64_t{9} << 19 : int64_t{1} << 17;
  large.steps = 2;
  std::vector<at::Tensor> values;
  for (const bool offloads : {false, true}) {
    test::ThreadWorld world(offloads ? share(large, {.ratio = has_pieces ? 0.02 : 0.3}) : on_devices(large));
    ASSERT_THAT(world.run([](test::Rank& rank) { train_without_waits(rank, {}); }), Each(""));
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_TRUE(values[0].equal(values[1])) << large.text();
  expect_no_race(large);
}

// The device has not sent its part when the step returns.
TEST_P(ParamShareOffload, TheHostUpdatesWhileTheDeviceDoes) {
  if (are_in_files() || std::get<0>(GetParam()) != Schedule::kLazy) return;
  const Scenario made = share(scenario());
  test::ThreadWorld world(made);
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < 2; ++step) {
      rank.train_step(step);
      const int device = rank.scenario.device_of(rank.gather.rank()).index();
      EXPECT_FALSE(Streams::get().is_done(Streams::get().record({device, 0})));
    }
    rank.finish();
  });
  EXPECT_THAT(errors, Each(""));
  expect_a_wait_for_the_agreement_alone(made);
  expect_no_race(made);
}

// The weights of a rank change while a pass that needs the old ones is under way.
TEST_P(ParamShareOffload, APassHasTheWeightsThatItBeganWith) {
  const auto on_both_sides = [](test::Rank& rank, int pass) {
    rank.engine->set_weights(1, 4, 0, at::full({20'000}, 0.01 * (pass + 1), at::kFloat));
  };
  const Scenario offloads = share(scenario(), {.buffer_count = 5});
  expect_old_weights_whatever_changes(on_devices(scenario()), offloads, on_both_sides);
}

TEST_P(ParamShareOffload, StreamsOfTheUsersGiveTheSameBits) {
  expect_the_same_bits_on_own_streams(share(scenario()));
}

TEST_P(ParamShareOffload, AnEngineMayGoAtAnyTime) {
  expect_an_engine_may_go(share(scenario()));
}

TEST_P(ParamShareOffload, ReturnsItsUnits) {
  expect_returned_units(share(scenario()));
}

TEST_P(ParamShareOffload, MemoryThatCannotBePinnedGivesTheSameBits) {
  const Scenario made = share(scenario(), {.max_in_memory = 30'000});
  Scenario pageable = made;
  pageable.config.offload_param.pin_memory = pageable.config.offload_optimizer.pin_memory = false;
  expect_bits_without_pinning(made, pageable);
}

TEST_P(ParamShareOffload, GradientsAreReadAndSet) {
  expect_the_same_gradients(on_devices(scenario()), share(scenario()));
}

// Parameters of a unit in several param groups, one of which is not updated, on both sides of the border.
TEST_P(ParamShareOffload, ParamGroupsCutUnits) {
  std::vector<at::Tensor> values;
  for (const bool offloads : {false, true}) {
    test::ThreadWorld world(offloads ? share(scenario(), {.ratio = 0.5}) : on_devices(scenario()));
    const auto errors = world.run([](test::Rank& rank) {
      at::set_num_threads(1);
      EngineOptions options;
      options.config = rank.scenario.config;
      options.device = rank.scenario.device_of(rank.gather.rank());
      options.param_groups.resize(2);
      options.param_groups[0].lr = 0.02;
      options.param_groups[1].lr = 0.003;
      std::vector<UnitDefinition> units = rank.model.definitions();
      for (UnitDefinition& unit : units)
        for (size_t i = 0; i < unit.params.size(); ++i) unit.params[i].param_group = i == 2 ? -1 : int(i % 2);
      rank.engine = std::make_unique<Engine>(std::move(units), std::move(options), rank.gather, rank.reduce);
      for (int step = 0; step < 4; ++step) rank.train_step(step);
      rank.finish();
    });
    ASSERT_THAT(errors, Each(""));
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_TRUE(values[0].equal(values[1]));
  expect_no_race(scenario());
}

// Two engines with buffers and streams of their own, which take turns.
TEST_P(ParamShareOffload, EnginesBesideEachOther) {
  const Scenario made = share(scenario()), other = share(scenario(DType::kBFloat16), {.ratio = 0.75});
  const Result expected = test::train(on_devices(scenario()));
  test::ThreadWorld first(made), second(other);
  const auto errors = first.run([&](test::Rank& one) {
    at::set_num_threads(1);
    test::Rank& two = second.rank(one.gather.rank());
    one.make_engine();
    two.make_engine();
    for (int step = 0; step < made.steps; ++step)
      for (test::Rank* const rank : {&one, &two}) rank->train_step(step);
    for (test::Rank* const rank : {&one, &two}) rank->finish();
  });
  ASSERT_THAT(errors, Each(""));
  for (test::ThreadWorld* const world : {&first, &second})
    EXPECT_TRUE(world->rank(0).result.values.equal(expected.values));
  expect_no_race(made);
}

// Saved in the background with a part of the states, and loaded where all or none have left the device, and the other
// way round; with a pass under way whose gathers the load must not change, and with frozen parameters.
TEST_P(ParamShareOffload, CheckpointsGoBetweenTiers) {
  Scenario made = scenario(), none = scenario();
  made.model.frozen = none.model.frozen = true;
  none.config.stage = 2;
  const Scenario loads_share = share(made, {.ratio = 0.6, .buffer_count = 5});
  Scenario both = loads_share;
  both.config.offload_optimizer.ratio = 1;
  for (const Scenario& other : {on_devices(none), both}) {
    for (const bool saves_share : {false, true}) {
      const TemporaryDirectory root;
      const Scenario& loading = saves_share ? other : loads_share;
      const SavedRun run = train_and_save(saves_share ? share(made) : other, root.path(), {.async = true});
      expect_same_end(loading, run, [&](test::SavingRank& rank) { load_under_a_pass(rank, loading, root.path()); });
    }
  }
  expect_no_race(made);
}

// Parameters of the host and of files are written while a save in the background reads what was copied of their states,
// and frozen ones where they lie.
TEST_P(ParamShareOffload, SavesHaveTheStateOfTheirStep) {
  Scenario mixed = share(scenario());
  mixed.model.frozen = mixed.model.unused = true;
  mixed.config.persistence_threshold = 1500;
  test::expect_the_state_of_their_step(mixed, 3);
  test::expect_the_state_of_their_step(test::with_skipped_steps(share(scenario(DType::kFloat16))), 5);
  test::expect_saves_and_loads_after_one_another(share(scenario()));
  expect_no_race(mixed);
}

// In the middle of an update, when the device has sent its part of some units.
TEST_P(ParamShareOffload, LostFilesEndEveryRank) {
  if (!are_in_files() && places().states != kFile) return;
  test::ThreadWorld world(share(scenario(), {.buffer_count = 1}));
  const std::vector<std::string> errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    rank.train_step(0);
    rank.engine->begin_forward(/*training=*/true);
    rank.engine->backward(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 1, 0, rank.engine.get()));
    rank.reduce.host().barrier("before");
    if (rank.reduce.rank() == 0) {
      for (const UniqueFd& file : testing::swap_files_in(directory_.path())) ASSERT_EQ(::ftruncate(file.get(), 0), 0);
    }
    rank.reduce.host().barrier("after");
    rank.engine->step();
    rank.train_step(2);
    rank.reduce.host().barrier("end");
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("the swap file in " + directory_.path()));
}

// Its optimizer has the states of a parameter in one place.
TEST_P(ParamShareOffload, AnOptimizerOutsideIsRefused) {
  test::ThreadWorld world(share(scenario()));
  const auto errors = world.run([&](test::Rank& rank) {
    EngineOptions options;
    options.config = rank.scenario.config;
    options.device = rank.scenario.device_of(rank.gather.rank());
    options.external_optimizer = "Adagrad";
    rank.engine = std::make_unique<Engine>(rank.model.definitions(), std::move(options), rank.gather, rank.reduce);
  });
  EXPECT_THAT(errors, Each(HasSubstr("Adagrad is an optimizer of your own")));
}

}  // namespace
}  // namespace zeroshard::accelerator

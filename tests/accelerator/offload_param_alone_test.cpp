// Engines on simulated devices whose shards of parameters lie on the host or in files, and whose optimizer states do
// not lie with them: the same bits in the planned memory, and no wait that is missing.
#include <gmock/gmock.h>

#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::Result;
using test::Scenario;
using ::testing::Each;
using testing::TemporaryDirectory;

// Where parameters lie, and where the states.
struct PlacesAlone {
  OffloadDevice parameters = OffloadDevice::kCpu;
  OffloadDevice states = OffloadDevice::kNone;

  bool device_updates() const { return states == OffloadDevice::kNone; }
  std::string of_parameters() const { return parameters == OffloadDevice::kCpu ? "host" : "file"; }
};
constexpr PlacesAlone kAllOnHost, kAllOnFile{OffloadDevice::kNvme},
    kFileAndHost{OffloadDevice::kNvme, OffloadDevice::kCpu};

using AloneCase = std::tuple<Schedule, int, PlacesAlone>;

class ParamAloneOffload : public ::testing::TestWithParam<AloneCase> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/21); }
  void TearDown() override { end_on_devices(); }
  static int ranks() { return std::get<1>(GetParam()); }
  static const PlacesAlone& places() { return std::get<2>(GetParam()); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(ranks(), /*stage=*/3);
    made.config.compute_dtype = dtype;
    made.steps = 3;
    return made;
  }
  Scenario offloading(Scenario scenario) const {
    OffloadParamConfig& param = scenario.config.offload_param;
    param = {.device = places().parameters, .nvme_path = {directory_.path()}, .buffer_count = 2, .max_in_memory = 0};
    scenario.config.offload_optimizer.device = places().states;
    return on_devices(std::move(scenario));
  }
  // On the host with the states.
  static Scenario offloading_both(Scenario scenario) {
    scenario.config.offload_param.device = scenario.config.offload_optimizer.device = OffloadDevice::kCpu;
    return on_devices(std::move(scenario));
  }
  Result expect_the_same_bits(const Scenario& scenario) const { return expect_bits_of(scenario, offloading(scenario)); }

  TemporaryDirectory directory_;
};

std::vector<AloneCase> alone_cases() {
  if (!testing::release()) {
    return {{Schedule::kLazy, 1, kAllOnHost},
            {Schedule::kLazy, 2, kAllOnHost},
            {Schedule::kLate, 2, kAllOnHost},
            {Schedule::kLate, 2, kAllOnFile},
            {Schedule::kLazy, 2, kFileAndHost}};
  }
  std::vector<AloneCase> all;
  for (const auto& [schedule, ranks] : cases_of_one_stage({}))
    for (const PlacesAlone& places : {kAllOnHost, kAllOnFile, kFileAndHost}) all.emplace_back(schedule, ranks, places);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Schedules, ParamAloneOffload, ::testing::ValuesIn(alone_cases()));

// fp32 parameters that the device updates are the master weights of their states, and stay with them.
TEST_P(ParamAloneOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Result result = expect_the_same_bits(scenario(dtype)), without = test::train(on_devices(scenario(dtype)));
    const bool stay = places().device_updates() && dtype == DType::kFloat32;
    const int64_t shards = planned(without, "parameters", "device");
    EXPECT_EQ(planned(result, "parameters", "device"), stay ? shards : 0);
    EXPECT_EQ(planned(result, "parameters", places().of_parameters()), stay ? 0 : shards);
    const std::string states = places().device_updates() ? "device" : "host";
    for (const std::string category : {"moments", "master weights"})
      EXPECT_EQ(planned(result, category, states), planned(without, category, "device")) << category;
    EXPECT_EQ(planned(result, "pinned", "host"), 0);  // nothing passes through the host's
    const Result both = test::train(offloading_both(scenario(dtype)));
    const int64_t buffers = planned(result, "gather ring", "device") - planned(both, "gather ring", "device");
    EXPECT_EQ(buffers > 0, places().device_updates() && !stay);
  }
}

TEST_P(ParamAloneOffload, AccumulatesGradients) {
  for (const Scenario& each : accumulating(scenario(DType::kBFloat16))) expect_the_same_bits(each);
}

TEST_P(ParamAloneOffload, SkipsStepsThatOverflow) {
  expect_skipped_steps(scenario(DType::kFloat16), [&](const Scenario& of) { return offloading(of); });
}

// Small units and those of a rule stay on the device; frozen parameters leave with the others, and those that no
// forward reads.
TEST_P(ParamAloneOffload, UnitsOfAllKindsBesideEachOther) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario mixed = scenario(dtype);
    mixed.model.frozen = mixed.model.unused = true;
    mixed.config.persistence_threshold = 1500;  // the head
    mixed.config.placement = {{"unit 3", /*replicated=*/true}};
    const Result result = expect_the_same_bits(mixed);
    EXPECT_GT(planned(result, "parameters", "device"), 0);
    EXPECT_GT(planned(result, "parameters", places().of_parameters()), 0);
  }
}

TEST_P(ParamAloneOffload, OptimizersWithoutMomentsAndRunsWithoutPrefetch) {
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

TEST_P(ParamAloneOffload, DevicesWithoutKernelsOfTheirOwn) {
  use_own_kernels(false);
  const Result expected = test::train(on_devices(scenario(DType::kBFloat16))),
               result = test::train(offloading(scenario(DType::kBFloat16)));
  use_own_kernels(true);
  ASSERT_FALSE(HasFailure());
  EXPECT_TRUE(!places().device_updates() || result.values.equal(expected.values));
  EXPECT_LE((expected.values - result.values).abs().max().item<float>(), 1e-2F);
  EXPECT_THAT(Streams::get().races().found(), ::testing::IsEmpty());
}

// Large units: buffers of pieces, of which a shard may have several, and slots of the ring are used again, while their
// last users may still be busy.
TEST_P(ParamAloneOffload, BuffersAreUsedAgain) {
  Scenario large = scenario(DType::kBFloat16);
  const bool has_pieces = ranks() == 1 && places().parameters == OffloadDevice::kCpu;  // they take a while
  large.model.ballast = has_pieces ? int64_t{9} << 19 : int64_t{1} << 17;
  large.steps = 2;
  std::vector<at::Tensor> values;
  for (const bool offloads : {false, true}) {
    test::ThreadWorld world(offloads ? offloading(large) : on_devices(large));
    ASSERT_THAT(world.run([](test::Rank& rank) { train_without_waits(rank, {}); }), Each(""));
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_TRUE(values[0].equal(values[1])) << large.text();
  expect_no_race(large);
}

// The weights of a rank change while a pass that needs the old ones is under way.
TEST_P(ParamAloneOffload, APassHasTheWeightsThatItBeganWith) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_old_weights_whatever_changes(on_devices(scenario(dtype)), offloading(scenario(dtype)));
}

TEST_P(ParamAloneOffload, StreamsOfTheUsersGiveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_same_bits_on_own_streams(offloading(scenario(dtype)));
}

// Not for the file's sake: see ParamFileOffload for that.
TEST_P(ParamAloneOffload, TheHostWaitsForTheAgreementAlone) {
  if (places().parameters != OffloadDevice::kCpu) return;
  expect_a_wait_for_the_agreement_alone(offloading(scenario(DType::kBFloat16)));
  const Scenario made = offloading(scenario(DType::kBFloat16));
  test::ThreadWorld world(made);
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < 2; ++step) rank.train_step(step);
    const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), 2, 0);
    const int64_t before = Streams::host_waits_of_this_thread();
    for (int step = 0; step < 3; ++step) {
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 2, batch, rank.engine.get()));
      EXPECT_TRUE(rank.engine->step().applied);
    }
    EXPECT_EQ(Streams::host_waits_of_this_thread() - before, 3);  // one in each step
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(ParamAloneOffload, AnEngineMayGoAtAnyTime) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) expect_an_engine_may_go(offloading(scenario(dtype)));
}

TEST_P(ParamAloneOffload, ReturnsItsUnits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) expect_returned_units(offloading(scenario(dtype)));
}

TEST_P(ParamAloneOffload, MemoryThatCannotBePinnedGivesTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Scenario made = offloading(scenario(dtype));
    Scenario pageable = made;
    pageable.config.offload_param.pin_memory = pageable.config.offload_optimizer.pin_memory = false;
    expect_bits_without_pinning(made, pageable);
  }
}

TEST_P(ParamAloneOffload, GradientsAreReadAndSet) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_same_gradients(on_devices(scenario(dtype)), offloading(scenario(dtype)));
}

// It has the master weights: fp32 parameters that the host updates do not go to files then.
TEST_P(ParamAloneOffload, AnOptimizerOutsideUpdatesMasterWeights) {
  const bool on_host = !places().device_updates();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const at::Tensor without = values_of_an_optimizer_outside(on_devices(scenario(dtype)), /*on_host=*/false);
    EXPECT_TRUE(without.equal(values_of_an_optimizer_outside(offloading(scenario(dtype)), on_host)));
  }
  expect_no_race(scenario());
}

// Saved with offload and loaded without, and the other way round: in the background, at another stage, with a pass
// under way whose gathers the load must not change, and with frozen parameters.
TEST_P(ParamAloneOffload, CheckpointsGoBetweenTiers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool saves_from_there : {false, true}) {
      const TemporaryDirectory root;
      Scenario made = scenario(dtype), other = scenario(dtype);
      made.model.frozen = other.model.frozen = true;
      other.config.stage = 2;
      const Scenario saving = saves_from_there ? offloading(made) : on_devices(other);
      const Scenario loading = saves_from_there ? on_devices(other) : offloading(made);
      const SavedRun run = train_and_save(saving, root.path(), {.async = true});
      expect_same_end(loading, run, [&](test::SavingRank& rank) { load_under_a_pass(rank, loading, root.path()); });
    }
  }
  expect_no_race(scenario());
}

// From and to where states have left the device, too.
TEST_P(ParamAloneOffload, CheckpointsGoToStatesOnTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool saves_alone : {false, true}) {
      const TemporaryDirectory root;
      const Scenario alone = offloading(scenario(dtype)), both = offloading_both(scenario(dtype));
      const SavedRun run = train_and_save(saves_alone ? alone : both, root.path());
      const Scenario& loading = saves_alone ? both : alone;
      expect_same_end(loading, run, [&](test::SavingRank& rank) { load_under_a_pass(rank, loading, root.path()); });
    }
  }
  expect_no_race(scenario());
}

}  // namespace
}  // namespace zeroshard::accelerator

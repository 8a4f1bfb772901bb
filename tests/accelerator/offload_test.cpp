// Engines on simulated devices whose optimizer states and reduced gradients lie on the host: the same bits in less
// memory of the device, and no wait that is missing.
#include <gmock/gmock.h>

#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::Result;
using test::Scenario;
using ::testing::Each;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

Scenario offloading_states(Scenario scenario) {
  scenario.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  return on_devices(std::move(scenario));
}

class Offload : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/3); }
  void TearDown() override { end_on_devices(); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(std::get<1>(GetParam()), std::get<2>(GetParam()));
    made.config.compute_dtype = dtype;
    return made;
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, Offload, ::testing::ValuesIn(cases_of_all_stages()));

void expect_the_same_bits_of_states(const Scenario& scenario) {
  for (const MemoryLine& line : expect_bits_of(scenario, offloading_states(scenario)).memory) {
    if (line.category == "master weights" || line.category == "moments") {
      EXPECT_EQ(line.tier, "host");
    }
  }
}

TEST_P(Offload, GivesTheSameBitsInThePlannedMemory) {
  expect_the_same_bits_of_states(scenario());
  expect_the_same_bits_of_states(scenario(DType::kBFloat16));
}

TEST_P(Offload, AccumulatesOnTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool no_sync : {false, true}) {
      Scenario accumulating = scenario(dtype);
      accumulating.steps = 2;
      accumulating.config.grad_accumulation_steps = 3;
      accumulating.no_sync = no_sync;
      expect_the_same_bits_of_states(accumulating);
    }
  }
  Scenario rounded = scenario(DType::kBFloat16);  // every sum is rounded to 16 bits, as without offload
  rounded.steps = 2;
  rounded.config.grad_accumulation_steps = 3;
  rounded.config.grad_accum_dtype = DType::kBFloat16;
  expect_the_same_bits_of_states(rounded);
}

TEST_P(Offload, SkipsStepsThatOverflow) {
  expect_skipped_steps(scenario(DType::kFloat16), [&](const Scenario& of) { return offloading_states(of); });
}

TEST_P(Offload, UnitsThatStayWholeAndOneRankInTheShapeOfShards) {
  Scenario whole = scenario(DType::kBFloat16);
  whole.config.persistence_threshold = 1'000'000;
  expect_the_same_bits_of_states(whole);
  Scenario shards = scenario(DType::kBFloat16);
  shards.config.shard_one_rank = true;
  expect_the_same_bits_of_states(shards);
}

// The optimizer has no states but the master weights.
TEST_P(Offload, OptimizersWithoutMoments) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario plain = scenario(dtype);
    plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
    plain.config.optimizer->momentum = 0;
    expect_the_same_bits_of_states(plain);
  }
}

// Trains on devices with and without offload; `before_step` is done on each rank, and may wait for nothing.
void expect_the_same_states_without_waits(const Scenario& scenario, const BeforeStep& before_step) {
  std::vector<at::Tensor> values;
  for (const bool offloads : {false, true}) {
    test::ThreadWorld world(offloads ? offloading_states(scenario) : on_devices(scenario));
    const auto errors = world.run([&before_step](test::Rank& rank) { train_without_waits(rank, before_step); });
    ASSERT_THAT(errors, Each(""));
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_TRUE(values[0].equal(values[1])) << scenario.text();
  expect_no_race(scenario);
}

// Large units: buffers are used again within a pass and within a step, while their last users may still be busy.
TEST_P(Offload, BuffersAreUsedAgain) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario large = scenario(dtype);
    large.model.ballast = 1 << 17;
    large.steps = 3;
    expect_the_same_states_without_waits(large, {});
  }
}

// What users write to parameters that are whole, by whatever way, counts from the next step on.
TEST_P(Offload, WritesOfUsersCount) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    expect_the_same_states_without_waits(scenario(dtype), [](test::Rank& rank, int step) {
      if (step != 1 || rank.scenario.config.stage == 3) return;
      const at::NoGradGuard no_grad;
      rank.model.params()[2][0].data().mul_(1.5);
    });
  }
}

// Also where a unit gets its first gradient some steps later.
TEST_P(Offload, WritesBeforeTheFirstGradientCount) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario later = scenario(dtype);
    later.steps = 5;
    later.skip = [](int /*rank*/, int step, size_t unit) { return unit == 1 && step < 3; };
    expect_the_same_states_without_waits(later, [](test::Rank& rank, int step) {
      if (step != 1 || rank.scenario.config.stage == 3) return;
      const at::NoGradGuard no_grad;
      rank.model.params()[1][0].data().mul_(1.5);
    });
  }
}

// Parameters come to the host where somebody has written to them alone; a checksum on the device tells.
TEST_P(Offload, ParametersThatNobodyWroteToStayOnTheDevice) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario made = offloading_states(scenario(dtype));
    made.steps = 4;
    std::vector<int64_t> copies;  // of all ranks, up to each step
    test::ThreadWorld world(made);
    for (int step = 0; step < made.steps; ++step) {
      const auto errors = world.run([step](test::Rank& rank) {
        at::set_num_threads(1);
        if (step == 0) rank.make_engine();
        const at::NoGradGuard no_grad;
        if (step == 2 && rank.scenario.config.stage < 3) rank.model.params()[2][0].data().mul_(1.5);
        const at::AutoGradMode with_grad(true);
        rank.train_step(step);
      });
      ASSERT_THAT(errors, Each(""));
      copies.push_back(Streams::get().counts().copies);
    }
    const int64_t untouched = copies[1] - copies[0], written = copies[2] - copies[1], after = copies[3] - copies[2];
    EXPECT_EQ(after, untouched);
    if (made.config.stage < 3) {
      EXPECT_GT(written, untouched);
    }
  }
}

// Right after a step, whose copies to the device are under way, and of the whole unit.
TEST_P(Offload, WeightsThatAreSetFollowTheCopiesOfTheStep) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    expect_the_same_states_without_waits(scenario(dtype), set_weights);
  }
}

TEST_P(Offload, StreamsOfTheUsersGiveTheSameBits) {
  expect_the_same_bits_on_own_streams(offloading_states(scenario(DType::kBFloat16)));
}

// From the first forward to the agreement on the step the host waits for nothing that it does not wait for without
// offload.
TEST_P(Offload, TheHostDoesNotWaitBeforeTheRanksHaveAgreed) {
  std::vector<int64_t> passes, agreements;
  for (const bool offloads : {false, true}) {
    Scenario accumulating = scenario(DType::kBFloat16);
    accumulating.config.grad_accumulation_steps = 2;
    test::ThreadWorld world(offloads ? offloading_states(accumulating) : on_devices(accumulating));
    int64_t pass = 0, agreement = 0;
    const auto errors = world.run([&](test::Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      for (int warm = 0; warm < 2; ++warm) rank.train_step(warm);
      const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), 2, 0);
      const int64_t before = Streams::host_waits_of_this_thread();
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        rank.engine->begin_forward(/*training=*/true);
        rank.engine->backward(
            test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 2, batch, rank.engine.get()));
      }
      const int64_t after = Streams::host_waits_of_this_thread();
      const StepResult result = rank.engine->prepare_step();
      if (rank.gather.rank() == 0) {
        pass = after - before;
        agreement = Streams::host_waits_of_this_thread() - after;
      }
      EXPECT_TRUE(result.applied);
    });
    ASSERT_THAT(errors, Each(""));
    passes.push_back(pass);
    agreements.push_back(agreement);
  }
  EXPECT_EQ(passes, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(agreements, (std::vector<int64_t>{1, 1}));
}

TEST_P(Offload, AnEngineMayGoAtAnyTime) {
  expect_an_engine_may_go(offloading_states(scenario(DType::kBFloat16)));
}

// A backward that fails on one rank is discarded, with what it has already sent to the host.
TEST_P(Offload, AFailedBackwardLeavesNothing) {
  const Scenario failing = offloading_states(scenario(DType::kBFloat16));
  const Result expected = test::train(failing);
  test::ThreadWorld world(failing);
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < rank.scenario.steps; ++step) {
      rank.engine->begin_forward(/*training=*/true);
      const at::Tensor loss =
          test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step + 7, 0, rank.engine.get());
      rank.engine->begin_backward();
      loss.backward();
      if (rank.gather.rank() == 0)
        rank.engine->fail_backward("a test");
      else
        EXPECT_THROW(rank.engine->end_backward(), StateError);
      rank.train_step(step);
    }
    rank.finish();
  });
  ASSERT_THAT(errors, Each(""));
  EXPECT_TRUE(expected.values.equal(world.rank(0).result.values));
  expect_no_race(failing);
}

TEST_P(Offload, TwoEnginesTrainBesideEachOther) {
  const Scenario one = offloading_states(scenario(DType::kBFloat16));
  const Result expected = test::train(one);
  test::ThreadWorld first(one), second(one);
  const auto errors = first.run([&second](test::Rank& rank) {
    at::set_num_threads(1);
    test::Rank& other = second.rank(rank.gather.rank());
    rank.make_engine();
    other.make_engine();
    for (int step = 0; step < rank.scenario.steps; ++step) {
      rank.train_step(step);
      other.train_step(step);
    }
    rank.finish();
    other.finish();
  });
  ASSERT_THAT(errors, Each(""));
  for (test::ThreadWorld* world : {&first, &second}) EXPECT_TRUE(expected.values.equal(world->rank(0).result.values));
  expect_no_race(one);
}

// A device without kernels of its own: its gradients are reduced by LibTorch's operations, and updated by the CPU's
// kernels all the same.
TEST_P(Offload, DevicesWithoutKernelsOfTheirOwn) {
  use_own_kernels(false);
  const Result expected = test::train(scenario()), result = test::train(offloading_states(scenario()));
  use_own_kernels(true);
  ASSERT_FALSE(HasFailure());
  EXPECT_LE((expected.values - result.values).abs().max().item<float>(), 1e-8F);
  EXPECT_THAT(Streams::get().races().found(), IsEmpty());
}

TEST_P(Offload, MemoryThatCannotBePinnedGivesTheSameBits) {
  const Scenario made = offloading_states(scenario(DType::kBFloat16));
  Scenario pageable = made;
  pageable.config.offload_optimizer.pin_memory = false;
  expect_bits_without_pinning(made, pageable);
}

TEST_P(Offload, GradientsAreReadAndSet) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_same_gradients(on_devices(scenario(dtype)), offloading_states(scenario(dtype)));
  expect_no_race(scenario());
}

// An optimizer outside the engine has tensors of the host, and what it writes to them goes to the device.
TEST_P(Offload, AnOptimizerOutsideUpdatesOnTheHost) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const at::Tensor without = values_of_an_optimizer_outside(on_devices(scenario(dtype)), /*on_host=*/false);
    EXPECT_TRUE(without.equal(values_of_an_optimizer_outside(offloading_states(scenario(dtype)), /*on_host=*/true)));
  }
  expect_no_race(scenario());
}

// Saved with offload and loaded without, and the other way round: at another stage and number of ranks.
TEST_P(Offload, CheckpointsGoBetweenTiers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool saves_from_host : {false, true}) {
      const TemporaryDirectory root;
      const auto place = [](const Scenario& made, bool offloads) {
        return offloads ? offloading_states(made) : on_devices(made);
      };
      const Scenario saving = place(scenario(dtype), saves_from_host);
      const SavedRun run = train_and_save(saving, root.path());
      Scenario other = scenario(dtype);
      other.config.stage = saving.config.stage % 3 + 1;
      const Scenario loading = place(other, !saves_from_host);
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

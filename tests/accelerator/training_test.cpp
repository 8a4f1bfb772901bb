// Engines on simulated devices train as those on the CPU do.
#include <gmock/gmock.h>

#include "accelerator/support.h"

namespace zeroshard::accelerator {
namespace {

using test::kUnits;
using test::kWidth;
using test::Result;
using test::Scenario;

class DeviceTraining : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/3); }
  void TearDown() override { end_on_devices(); }
};

// Schedule, ranks and stage.
std::vector<std::tuple<Schedule, int, int>> training_cases() {
  std::vector<std::tuple<Schedule, int, int>> all{{Schedule::kLate, 4, 1}, {Schedule::kLazy, 4, 3}};
  for (const Schedule schedule : {Schedule::kEager, Schedule::kLate, Schedule::kLazy})
    for (const int ranks : {1, 3})
      for (const int stage : {0, 1, 2, 3}) all.emplace_back(schedule, ranks, stage);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Schedules, DeviceTraining, ::testing::ValuesIn(training_cases()));

void expect_the_cpus_values(const Scenario& scenario) {
  const Result expected = test::train(scenario), result = test::train(on_devices(scenario));
  ASSERT_FALSE(::testing::Test::HasFailure());
  EXPECT_TRUE(expected.values.equal(result.values)) << scenario.text();
  EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{}) << scenario.text();
  EXPECT_EQ(operators_that_waited(), std::vector<std::string>{}) << scenario.text();
}

TEST_P(DeviceTraining, GivesTheCpusValuesWithoutARace) {
  const auto [schedule, world_size, stage] = GetParam();
  expect_the_cpus_values(test::make_scenario(world_size, stage));
}

TEST_P(DeviceTraining, AccumulatesInBf16) {
  const auto [schedule, world_size, stage] = GetParam();
  for (const bool no_sync : {false, true}) {
    Scenario scenario = test::make_scenario(world_size, stage);
    scenario.steps = 2;
    scenario.config.compute_dtype = DType::kBFloat16;
    scenario.config.grad_accumulation_steps = 2;
    scenario.no_sync = no_sync;
    expect_the_cpus_values(scenario);
  }
}

TEST_P(DeviceTraining, EveryStageGivesTheSameBits) {
  const auto [schedule, world_size, stage] = GetParam();
  const Result expected = test::train(on_devices(test::make_scenario(world_size, 0)));
  const Result result = test::train(on_devices(test::make_scenario(world_size, stage)));
  ASSERT_FALSE(HasFailure());
  EXPECT_TRUE(expected.values.equal(result.values));
}

// Trains on the CPU and on devices. `before_step` is done on each rank.
void expect_the_same_without_waits(const Scenario& scenario, const BeforeStep& before_step, float tolerance = 0) {
  std::vector<at::Tensor> values;
  for (const bool on_device : {false, true}) {
    test::ThreadWorld world(on_device ? on_devices(scenario) : scenario);
    const auto errors = world.run([&before_step](test::Rank& rank) { train_without_waits(rank, before_step); });
    for (const std::string& error : errors) ASSERT_EQ(error, "");
    values.push_back(world.rank(0).result.values);
  }
  EXPECT_LE((values[0] - values[1]).abs().max().item<float>(), tolerance);
  EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{});
}

// The optimizer reads the gradients of the last unit. In the next pass these are the first that are summed, and nothing
// is added to them before.
TEST_P(DeviceTraining, AUnitWithoutGradientsWaitsForTheUpdateBefore) {
  const auto [schedule, world_size, stage] = GetParam();
  Scenario scenario = test::make_scenario(world_size, stage);
  scenario.skip = [](int, int step, size_t unit) { return step % 2 == 1 && unit == kUnits - 1; };
  expect_the_same_without_waits(scenario, {});
}

TEST_P(DeviceTraining, MoreUnitsAreHeldThanTheRingHasSlots) {
  const auto [schedule, world_size, stage] = GetParam();
  Scenario scenario = test::make_scenario(world_size, stage);
  scenario.config.prefetch_numel = 0;
  expect_the_same_without_waits(scenario, [](test::Rank& rank, int step) {
    const std::vector<size_t> all = {0, 1, 2, 3, 4};
    if (step > 0) rank.engine->release(all);
    rank.engine->gather(all);
  });
}

// Large units: slots are lent again within a pass, while their last users may still be busy.
TEST_P(DeviceTraining, RingsOfFewSlotsGiveTheCpusBits) {
  const auto [schedule, world_size, stage] = GetParam();
  Scenario scenario = test::make_scenario(world_size, stage);
  scenario.model.ballast = int64_t{1} << 20;
  scenario.steps = 2;
  for (const bool own : {true, false}) {  // gradients are packed when the bucket is complete, or each at once
    use_own_kernels(own);
    expect_the_same_without_waits(scenario, {}, own ? 0 : 1e-8F);
  }
}

// Nothing is unsharded before the next units are gathered ahead.
TEST_P(DeviceTraining, WeightsThatAreSetComeBeforeGathersAhead) {
  const auto [schedule, world_size, stage] = GetParam();
  expect_the_same_without_waits(test::make_scenario(world_size, stage), [](test::Rank& rank, int step) {
    if (step == 0) rank.engine->gather({0});
    const at::Tensor weight = at::full({kWidth * kWidth}, 0.01 * (step + 1), rank.model.params()[0][0].options());
    for (const size_t unit : {1, 2}) rank.engine->set_weights(unit, 0, 0, weight.detach());
  });
}

// As above, where the first unit is whole on every rank and the update writes the others.
TEST_P(DeviceTraining, AnUpdateComesBeforeGathersAhead) {
  const auto [schedule, world_size, stage] = GetParam();
  Scenario scenario = test::make_scenario(world_size, stage);
  scenario.config.placement.push_back({"unit 0", /*replicated=*/true});
  expect_the_same_without_waits(scenario, {});
}

// Ranks that `take_steps` have, with an engine, the values of test::train(), without a race. `at_end`, which may be
// null, is done behind all.
void expect_the_same_bits(const Scenario& scenario, const std::function<void(test::Rank&)>& take_steps,
                          const std::function<void(test::Rank&)>& at_end = {}) {
  const Result expected = test::train(scenario);
  test::ThreadWorld world(scenario);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    take_steps(rank);
    rank.finish();
    if (at_end) at_end(rank);
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  EXPECT_TRUE(expected.values.equal(world.rank(0).result.values));
  EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{});
}

at::Tensor forward(test::Rank& rank, int step) {
  rank.engine->begin_forward(/*training=*/true);
  return test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step, /*micro_batch=*/0, rank.engine.get());
}

// The engine gives its memory back, behind what uses it, where it goes after `last` of each rank.
void expect_an_engine_may_go_after(const Scenario& scenario, const std::function<void(test::Rank&)>& last) {
  const int64_t before = allocated_bytes(0);
  {
    test::ThreadWorld world(scenario);
    const auto errors = world.run([&last](test::Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      for (int step = 0; step < 2; ++step) rank.train_step(step);
      last(rank);
      rank.engine.reset();
    });
    for (const std::string& error : errors) ASSERT_EQ(error, "");
  }
  for (int i = 0; i < scenario.world_size; ++i) Streams::get().wait_for_device(i);
  EXPECT_EQ(allocated_bytes(0), before);
  EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{});
}

TEST_P(DeviceTraining, AnEngineGoesWhileItGathersAhead) {
  const auto [schedule, world_size, stage] = GetParam();
  expect_an_engine_may_go_after(on_devices(test::make_scenario(world_size, stage)), [](test::Rank& rank) {
    rank.engine->begin_forward(/*training=*/true);
    rank.engine->unit(0, [&] { return at::zeros({1}); });
  });
}

// By a pass of its own, which has ended, and by one that nobody has ended.
TEST_P(DeviceTraining, AnEngineGoesWhileGradientsAreReduced) {
  const auto [schedule, world_size, stage] = GetParam();
  for (const bool ends : {true, false}) {
    expect_an_engine_may_go_after(on_devices(test::make_scenario(world_size, stage)), [ends](test::Rank& rank) {
      const at::Tensor loss = forward(rank, 2);
      if (!ends) rank.engine->begin_backward();
      rank.engine->scale_loss(loss).backward();
    });
  }
}

// It gathers ahead what the step writes.
TEST_P(DeviceTraining, AForwardWithoutABackwardComesBeforeTheStep) {
  const auto [schedule, world_size, stage] = GetParam();
  expect_the_same_bits(on_devices(test::make_scenario(world_size, stage)), [](test::Rank& rank) {
    for (int step = 0; step < rank.scenario.steps; ++step) {
      rank.engine->backward(forward(rank, step));
      const at::Tensor unused = forward(rank, step + 7);
      rank.result.steps.push_back(rank.engine->step());
    }
  });
}

// A device without kernels of its own. torch's fused Adam rounds otherwise than zeroshard's: 7e-10 apart in fp32.
TEST_P(DeviceTraining, LibTorchsOperationsGiveNearlyTheCpusValues) {
  const auto [schedule, world_size, stage] = GetParam();
  use_own_kernels(false);
  const Scenario scenario = test::make_scenario(world_size, stage);
  const Result expected = test::train(scenario), result = test::train(on_devices(scenario));
  ASSERT_FALSE(HasFailure());
  EXPECT_LE((expected.values - result.values).abs().max().item<float>(), 1e-8F);
  EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{});
}

TEST_P(DeviceTraining, StreamsOfTheUsersGiveTheSameBits) {
  const auto [schedule, world_size, stage] = GetParam();
  expect_the_same_bits(on_devices(test::make_scenario(world_size, stage)), [](test::Rank& rank) {
    for (int step = 0; step < rank.scenario.steps; ++step) step_on_own_streams(rank, step);
  });
}

// The memory of an engine may be lent again to the stream under which it was made, whichever is current when it goes.
TEST_P(DeviceTraining, AnEngineGoesUnderAnotherStream) {
  const auto [schedule, world_size, stage] = GetParam();
  test::ThreadWorld world(on_devices(test::make_scenario(world_size, stage)));
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < 2; ++step) rank.train_step(step);
    rank.engine->begin_forward(/*training=*/true);
    rank.engine->unit(0, [&] { return at::zeros({1}); });
    const c10::Device device = rank.scenario.device_of(rank.gather.rank());
    move_to(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device));
    rank.engine.reset();
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{});
}

// Streams and memory are those of the engine's device, whichever is current.
TEST_P(DeviceTraining, AnotherDeviceMayBeCurrent) {
  const auto [schedule, world_size, stage] = GetParam();
  const auto take_steps = [](test::Rank& rank) {
    for (int step = 0; step < rank.scenario.steps; ++step) {
      const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), step, /*micro_batch=*/0);
      set_current_device(kDevices - 1);
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(
          test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step, batch, rank.engine.get()));
      rank.result.steps.push_back(rank.engine->step());
    }
  };
  expect_the_same_bits(on_devices(test::make_scenario(world_size, stage)), take_steps, [](test::Rank& rank) {
    set_current_device(kDevices - 1);
    rank.engine.reset();
  });
}

// Of forward and backward without an engine.
int64_t launches_of_the_model(const Scenario& scenario) {
  const test::Model model(scenario.model, /*seed=*/1, scenario.device_of(0));
  const test::Batch batch = test::batch_of(scenario, 0, 0, 0);
  const Counts before = Streams::get().counts();
  test::loss_of(model, scenario, 0, 0, batch, nullptr).backward();
  return Streams::get().counts().launches - before.launches;
}

// Of the third step, from a barrier to a barrier. The test itself waits for two copies: the input and the target.
TEST_P(DeviceTraining, TheHostWaitsOnceAStep) {
  const auto [schedule, world_size, stage] = GetParam();
  const Scenario scenario = on_devices(test::make_scenario(world_size, stage));
  test::ThreadWorld world(scenario);
  Counts pass, step;
  const auto errors = world.run([&pass, &step](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int warm = 0; warm < 2; ++warm) rank.train_step(warm);
    Comm& host = rank.reduce.host();
    const bool counts = host.rank() == 0;
    host.barrier("before");
    if (counts) Streams::get().reset_counts();
    host.barrier("counted");
    rank.engine->begin_forward(/*training=*/true);
    const at::Tensor loss = test::loss_of(rank.model, rank.scenario, host.rank(), 2, 0, rank.engine.get());
    rank.engine->backward(loss);
    host.barrier("after backward");
    if (counts) pass = Streams::get().counts();
    host.barrier("counted");
    rank.engine->step();
    host.barrier("after step");
    if (counts) step = Streams::get().counts();
    host.barrier("counted");
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  EXPECT_EQ(pass.host_waits, 2 * world_size);
  EXPECT_EQ(step.host_waits, 3 * world_size);
  EXPECT_LE(pass.launches / world_size - launches_of_the_model(scenario), int64_t(3 * kUnits));
  EXPECT_LE((step.launches - pass.launches) / world_size, int64_t(2 * kUnits + 1));  // updates, squares, a zero
  RecordProperty("launches_of_a_pass", int(pass.launches) / world_size);
  RecordProperty("copies_of_a_pass", int(pass.copies) / world_size);
  RecordProperty("event_waits_of_a_pass", int(pass.event_waits) / world_size);
  RecordProperty("launches_of_a_step", int(step.launches) / world_size);
}

}  // namespace
}  // namespace zeroshard::accelerator

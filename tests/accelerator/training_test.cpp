// Engines on simulated devices train as those on the CPU do.
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm_c10d/make_comm.h"
#include "support/accelerator/device.h"
#include "support/accelerator/group.h"
#include "support/accelerator/memory.h"
#include "world/support.h"

namespace zeroshard::accelerator {
namespace {

using test::Result;
using test::Scenario;

std::vector<std::unique_ptr<Comm>> make_device_world(int world_size) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Comm>> comms(static_cast<size_t>(world_size));
  const auto errors = testing::run_threads(world_size, [&](int rank) {
    set_current_device(rank);
    comms[static_cast<size_t>(rank)] =
        make_comm(world_size == 1 ? nullptr : make_group(store, rank, world_size, rank), device(rank));
  });
  for (const std::string& error : errors) TORCH_CHECK(error.empty(), error);
  return comms;
}

Scenario on_devices(Scenario scenario) {
  scenario.device_of = [](int rank) {
    set_current_device(rank);
    return device(rank);
  };
  scenario.make_world = make_device_world;
  return scenario;
}

class DeviceTraining : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override {
    start();
    Streams::get().set_schedule(std::get<0>(GetParam()), /*seed=*/3);
    Streams::get().races().forget();
  }
  void TearDown() override {
    for (int i = 0; i < kDevices; ++i) Streams::get().wait_for_device(i);
    Streams::get().set_schedule(Schedule::kEager);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, DeviceTraining,
                         ::testing::Combine(::testing::Values(Schedule::kEager, Schedule::kLate, Schedule::kLazy),
                                            ::testing::Values(1, 2, 3), ::testing::Values(0, 1, 2, 3)));

// torch's fused Adam rounds otherwise than zeroshard's: 7e-10 apart in fp32.
void expect_the_cpus_values(const Scenario& scenario, float tolerance) {
  const Result expected = test::train(scenario), result = test::train(on_devices(scenario));
  ASSERT_FALSE(::testing::Test::HasFailure());
  EXPECT_LE((expected.values - result.values).abs().max().item<float>(), tolerance) << scenario.text();
  EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{}) << scenario.text();
  EXPECT_EQ(operators_that_waited(), std::vector<std::string>{}) << scenario.text();
}

TEST_P(DeviceTraining, GivesTheCpusValuesWithoutARace) {
  const auto [schedule, world_size, stage] = GetParam();
  expect_the_cpus_values(test::make_scenario(world_size, stage), 1e-8F);
}

TEST_P(DeviceTraining, AccumulatesInBf16) {
  const auto [schedule, world_size, stage] = GetParam();
  for (const bool no_sync : {false, true}) {
    Scenario scenario = test::make_scenario(world_size, stage);
    scenario.steps = 2;
    scenario.config.compute_dtype = DType::kBFloat16;
    scenario.config.grad_accumulation_steps = 2;
    scenario.no_sync = no_sync;
    expect_the_cpus_values(scenario, 4e-3F);
  }
}

TEST_P(DeviceTraining, EveryStageGivesTheSameBits) {
  const auto [schedule, world_size, stage] = GetParam();
  const Result expected = test::train(on_devices(test::make_scenario(world_size, 0)));
  const Result result = test::train(on_devices(test::make_scenario(world_size, stage)));
  ASSERT_FALSE(HasFailure());
  EXPECT_TRUE(expected.values.equal(result.values));
}

}  // namespace
}  // namespace zeroshard::accelerator

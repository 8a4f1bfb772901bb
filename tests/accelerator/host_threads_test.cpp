// A rank that updates on the host by one thread of several, as under torchrun.
#include <gmock/gmock.h>
#include <sched.h>

#include "accelerator/placements.h"

namespace zeroshard::accelerator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string told_by(const test::Scenario& scenario) {
  ::testing::internal::CaptureStderr();
  test::train(scenario);
  return ::testing::internal::GetCapturedStderr();
}

TEST(HostThreadsOnDevices, FewAreToldWhereTheHostUpdates) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (::sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) < 2) GTEST_SKIP() << "one CPU";
  begin_on_devices(Schedule::kEager, /*seed=*/1);
  test::Scenario scenario = on_devices(test::make_scenario(/*ranks=*/1, /*stage=*/2));
  EXPECT_THAT(told_by(scenario), Not(HasSubstr("OMP_NUM_THREADS")));
  scenario.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  EXPECT_THAT(told_by(scenario), HasSubstr("updated on the host, by 1 thread of each rank"));
  end_on_devices();
}

}  // namespace
}  // namespace zeroshard::accelerator

#include "plan/memory_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zeroshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kParams = 1e9;

PlanOptions options(int stage, int world_size, bool on_device = true) {
  PlanOptions made;
  made.stage = stage;
  made.world_size = world_size;
  made.on_device = on_device;
  return made;
}

MemoryNeeds needs(const PlanOptions& at) {
  return memory_needs(plan_count(int64_t(kParams), at), at.on_device);
}

std::string advice(const PlanOptions& at, MemoryLimits limits, bool may_use_files = false) {
  EXPECT_NE(passed_limits(needs(at), limits, at.on_device), "");
  return advice_to_fit({at, std::move(limits), needs, may_use_files});
}

MemoryLimits device(double bytes) {
  return {.device = MemoryLimit{bytes, "a key"}, .host = {}};
}
MemoryLimits host(double bytes) {
  return {.device = {}, .host = MemoryLimit{bytes, "a key"}};
}

// Of 16 bytes a parameter 12 are states, 2 are gradients and 2 are weights.
TEST(MemoryLimits, TheSmallestChangeThatFitsIsTold) {
  EXPECT_THAT(advice(options(1, 4), device(6.2e9)), HasSubstr("fits: zero_optimization.stage = 2"));
  EXPECT_THAT(advice(options(0, 2), device(9.1e9)), HasSubstr("fits: zero_optimization.stage = 2"));
  EXPECT_THAT(advice(options(2, 1), device(5e9)),
              HasSubstr("fits: zero_optimization.offload_optimizer.device = \"cpu\""));
  EXPECT_THAT(advice(options(0, 1), device(5e9)),
              HasSubstr("stage = 1 and zero_optimization.offload_optimizer.device = \"cpu\""));
  const auto both = [](double bytes) { return MemoryLimits{MemoryLimit{bytes, "a"}, MemoryLimit{bytes, "b"}}; };
  EXPECT_THAT(advice(options(3, 4), both(1e8)), AllOf(HasSubstr("fits: 160 ranks"), HasSubstr("memory each")));
  EXPECT_THAT(advice(options(0, 4), both(1e3)), HasSubstr("No stage, offload or number of ranks fits"));
}

TEST(MemoryLimits, OffloadMustFitTheHost) {
  MemoryLimits both{MemoryLimit{5e9, "a"}, MemoryLimit{20e9, "b"}};
  EXPECT_THAT(advice(options(2, 1), both), HasSubstr("\"cpu\""));
  both.host->bytes = 10e9;
  EXPECT_THAT(advice(options(2, 1), both), HasSubstr("ranks with as much memory"));
  EXPECT_THAT(advice(options(2, 1), both, /*may_use_files=*/true), HasSubstr("\"nvme\" with an nvme_path"));
}

TEST(MemoryLimits, OnTheCpuStatesGoToFiles) {
  const PlanOptions cpu = options(1, 1, /*on_device=*/false);
  EXPECT_THAT(advice(cpu, host(5e9), /*may_use_files=*/true), HasSubstr("\"nvme\" with an nvme_path"));
  EXPECT_THAT(advice(cpu, host(5e9)), HasSubstr("ranks with as much memory"));
}

// What is advised was planned with the ratio that the configuration has, or with the one that is advised.
TEST(MemoryLimits, TheRatioIsAmongTheChanges) {
  PlanOptions cpu = options(1, 1, /*on_device=*/false);
  cpu.state_share = 0.5;
  EXPECT_THAT(advice(cpu, host(10e9), true), HasSubstr("fits: zero_optimization.offload_optimizer.device = \"nvme\""));
  EXPECT_THAT(advice(cpu, host(10e9), true), ::testing::Not(HasSubstr("ratio")));
  EXPECT_THAT(advice(cpu, host(5e9), true),
              HasSubstr("\"nvme\" with an nvme_path and zero_optimization.offload_optimizer.ratio = 1"));
  cpu.state_tier = Tier::kFile;
  EXPECT_THAT(advice(cpu, host(5e9), true), HasSubstr("fits: zero_optimization.offload_optimizer.ratio = 1"));
  cpu.state_share = 1;
  EXPECT_THAT(advice(cpu, host(3e9), true), HasSubstr("fits: zeroshard.offload.gradients = \"nvme\""));
  EXPECT_THAT(advice(cpu, host(1e9), true), HasSubstr("fits: zero_optimization.stage = 3 and "));
  PlanOptions gpu = options(1, 1);
  gpu.state_share = 0.5;
  EXPECT_THAT(advice(gpu, device(5e9), true),
              HasSubstr("device = \"cpu\" and zero_optimization.offload_optimizer.ratio = 1"));
  EXPECT_THAT(advice(gpu, device(11e9), true), HasSubstr("fits: zero_optimization.offload_optimizer.device = \"cpu\""));
  EXPECT_THAT(advice(gpu, device(11e9), true), ::testing::Not(HasSubstr("ratio")));
  gpu.state_tier = Tier::kHost;
  EXPECT_THAT(advice(gpu, device(5e9)), HasSubstr("fits: zero_optimization.offload_optimizer.ratio = 1"));
}

// 2 bytes a parameter are weights, and 2 gradients.
TEST(MemoryLimits, GradientsThatAreToStayAreAmongTheChanges) {
  PlanOptions gpu = options(2, 1);
  gpu.gradients = OffloadConfig::Gradients::kDevice;
  EXPECT_THAT(advice(gpu, device(4.1e9)), HasSubstr("fits: zero_optimization.offload_optimizer.device = \"cpu\""));
  EXPECT_THAT(advice(gpu, device(4.1e9)), ::testing::Not(HasSubstr("gradients")));
  EXPECT_THAT(advice(gpu, device(2.1e9)),
              HasSubstr("fits: zero_optimization.offload_optimizer.device = \"cpu\" and zeroshard.offload.gradients = "
                        "\"auto\""));
  gpu.state_tier = Tier::kHost;
  EXPECT_THAT(advice(gpu, device(2.1e9)), HasSubstr("fits: zeroshard.offload.gradients = \"auto\""));
  gpu.state_share = 0.5;  // with the states that stay
  EXPECT_THAT(advice(gpu, device(2.1e9)), HasSubstr("fits: zero_optimization.offload_optimizer.ratio = 1 and "
                                                    "zeroshard.offload.gradients = \"auto\""));
}

// Beside states in files, on the CPU and beside a device.
TEST(MemoryLimits, GradientsInFilesAreAmongTheChanges) {
  for (const bool on_device : {false, true}) {
    PlanOptions options_of = options(3, 1, on_device);
    options_of.state_tier = options_of.parameter_tier = Tier::kFile;
    options_of.gradient_tier = tier_of_gradients(options_of);
    options_of.parameters_in_memory = 0;
    EXPECT_THAT(advice(options_of, host(1e9), /*may_use_files=*/true),
                HasSubstr("fits: zeroshard.offload.gradients = \"nvme\""));
    EXPECT_THAT(advice(options_of, host(1e9)), HasSubstr("2 ranks"));
    options_of.state_tier = options_of.parameter_tier = Tier::kDevice;
    options_of.gradient_tier = Tier::kDevice;
    EXPECT_THAT(advice(options_of, on_device ? MemoryLimits{MemoryLimit{3e9, "a"}, MemoryLimit{1e9, "b"}} : host(3e9),
                       /*may_use_files=*/true),
                on_device ? HasSubstr("and zeroshard.offload.gradients = \"nvme\"") : HasSubstr("offload_param"));
  }
}

// 2 of the 4 bytes a parameter that stay are weights: they go last.
TEST(MemoryLimits, OnTheCpuParametersGoToFilesWithTheirStates) {
  const PlanOptions cpu = options(3, 1, /*on_device=*/false);
  EXPECT_THAT(advice(cpu, host(4.1e9), /*may_use_files=*/true), ::testing::Not(HasSubstr("offload_param")));
  EXPECT_THAT(advice(cpu, host(2.1e9), /*may_use_files=*/true),
              HasSubstr("fits: zero_optimization.offload_optimizer.device = \"nvme\" with an nvme_path and "
                        "zero_optimization.offload_param.device = \"nvme\" with an nvme_path and "
                        "zero_optimization.offload_param.max_in_cpu = 0"));
  PlanOptions in_files = cpu;
  in_files.state_tier = in_files.parameter_tier = Tier::kFile;
  in_files.parameters_in_memory = 1'000'000'000;
  EXPECT_THAT(advice(in_files, host(1e9), /*may_use_files=*/true),
              HasSubstr("fits: zero_optimization.offload_param.max_in_cpu = 0"));
  in_files.gradients = OffloadConfig::Gradients::kNvme;
  in_files.gradient_tier = Tier::kFile;
  EXPECT_THAT(advice(in_files, host(1e9), /*may_use_files=*/true),
              HasSubstr("fits: zero_optimization.offload_param.max_in_cpu = 0"));
}

// Of 16 bytes a parameter 2 are weights: they follow their states to the host before anything goes to files.
TEST(MemoryLimits, BesideADeviceAllGoesToTheHostBeforeFiles) {
  const std::string states = "zero_optimization.offload_optimizer.device = \"cpu\"";
  const std::string parameters = "zero_optimization.offload_param.device = \"cpu\"";
  const auto said = [&](MemoryLimits limits, const PlanOptions& at = options(3, 1)) {
    return advice(at, std::move(limits), /*may_use_files=*/true);
  };
  EXPECT_EQ(said(device(1e9)), "The smallest change that fits: " + states + " and " + parameters);
  EXPECT_EQ(said(device(1e9), options(2, 1)),
            "The smallest change that fits: zero_optimization.stage = 3 and " + states + " and " + parameters);
  EXPECT_EQ(said({MemoryLimit{14.1e9, "a"}, MemoryLimit{2.1e9, "b"}}), "The smallest change that fits: " + parameters);
  EXPECT_EQ(
      said({MemoryLimit{1e9, "a"}, MemoryLimit{4.1e9, "b"}}),
      "The smallest change that fits: zero_optimization.offload_optimizer.device = \"nvme\" with an nvme_path and " +
          parameters);
  PlanOptions late = options(3, 1);  // with which parameters stay
  late.delayed_update = true;
  late.state_tier = Tier::kHost;
  EXPECT_THAT(said(device(1e9), late), ::testing::Not(HasSubstr("offload_param")));
}

TEST(MemoryLimits, BesideADeviceParametersGoToFilesWithTheirStates) {
  EXPECT_THAT(advice(options(3, 1), {MemoryLimit{1e9, "a"}, MemoryLimit{1e9, "b"}}, /*may_use_files=*/true),
              HasSubstr("offload_optimizer.device = \"nvme\" with an nvme_path and "
                        "zero_optimization.offload_param.device = \"nvme\" with an nvme_path and "
                        "zero_optimization.offload_param.max_in_cpu = 0"));
}

TEST(MemoryLimits, AdviceFitsAndOneRankLessDoesNot) {
  const MemoryLimits limits = host(1.1e9);
  const PlanOptions cpu = options(3, 8, /*on_device=*/false);
  EXPECT_EQ(passed_limits(needs(options(3, 15, false)), limits, false), "");
  EXPECT_NE(passed_limits(needs(options(3, 14, false)), limits, false), "");
  EXPECT_THAT(advice(cpu, limits), HasSubstr("fits: 15 ranks with"));
}

TEST(MemoryLimits, WhatIsPassedIsToldWithNeedAndHave) {
  const MemoryLimits limits{MemoryLimit{1e9, "KEY"}, MemoryLimit{2e9, "OTHER"}};
  EXPECT_EQ(passed_limits({1e9, 2e9}, limits, true), "");
  EXPECT_THAT(passed_limits({1e9 + 1, 0}, limits, true),
              HasSubstr("needs 1000000001 bytes (1 GB) of the device's memory, activations aside, and has 1000000000"));
  EXPECT_THAT(passed_limits({2e9, 3e9}, limits, true), AllOf(HasSubstr("KEY"), HasSubstr("OTHER")));
}

TEST(MemoryLimits, OnTheCpuTheSmallerKeyCounts) {
  OffloadConfig config;
  EXPECT_FALSE(configured_limits(config, false).host);
  config.device_memory = 5;
  EXPECT_EQ(configured_limits(config, false).host->source, "zeroshard.offload.device_memory");
  EXPECT_FALSE(configured_limits(config, false).device);
  EXPECT_FALSE(configured_limits(config, true).host);
  config.host_memory = 4;
  EXPECT_EQ(configured_limits(config, false).host->bytes, 4);
  EXPECT_EQ(configured_limits(config, true).device->bytes, 5);
  config.host_memory = 6;
  EXPECT_EQ(configured_limits(config, false).host->bytes, 5);
  EXPECT_EQ(configured_limits(config, false).of_tiers(false)[0].tiers.size(), 2U);
  EXPECT_EQ(configured_limits(config, true).of_tiers(true).size(), 2U);
}

TEST(MemoryLimits, RanksShareTheirHost) {
  HostMemory memory;
  EXPECT_FALSE(limit_of_host(memory, 2));
  memory.total = 1000;
  EXPECT_EQ(limit_of_host(memory, 1)->bytes, 1000);
  EXPECT_EQ(limit_of_host(memory, 4)->bytes, 250);
  EXPECT_THAT(limit_of_host(memory, 4)->source, HasSubstr("has: 1000 bytes for 4 ranks"));
  memory.cgroup_limit = 800;
  EXPECT_EQ(limit_of_host(memory, 4)->bytes, 200);
  memory.address_limit = 300;  // of each process
  EXPECT_EQ(limit_of_host(memory, 4)->bytes, 200);
  EXPECT_EQ(limit_of_host(memory, 1)->source, "ulimit -v");
}

}  // namespace
}  // namespace zeroshard

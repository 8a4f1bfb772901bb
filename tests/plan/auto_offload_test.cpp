#include "plan/auto_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using Device = OffloadOptimizerConfig::Device;

Config automatic(int stage = 2) {
  Config config;
  config.stage = stage;
  config.compute_dtype = DType::kBFloat16;
  config.offload_optimizer.device = Device::kAuto;
  return config;
}

std::vector<Device> devices(const std::vector<Config>& choices) {
  std::vector<Device> found;
  for (const Config& choice : choices) found.push_back(choice.offload_optimizer.device);
  return found;
}

TEST(AutoOffload, EachChoiceMovesMoreThanTheOneBefore) {
  Config config = automatic();
  EXPECT_EQ(devices(offload_choices(config, true, true)), (std::vector{Device::kNone, Device::kCpu}));
  EXPECT_EQ(devices(offload_choices(config, false, true)), (std::vector{Device::kNone}));
  config.offload_optimizer.nvme_path = {"/nvme"};
  EXPECT_EQ(devices(offload_choices(config, false, true)), (std::vector{Device::kNone, Device::kNvme}));
  EXPECT_EQ(devices(offload_choices(config, false, false)), (std::vector{Device::kNone}));
  EXPECT_EQ(devices(offload_choices(config, true, true)), (std::vector{Device::kNone, Device::kCpu, Device::kNvme}));
  EXPECT_EQ(devices(offload_choices(config, true, false)), (std::vector{Device::kNone, Device::kCpu}));
}

// They are in files with the states.
TEST(AutoOffload, GradientsInFilesRuleOutTheRest) {
  Config config = automatic();
  config.offload_optimizer.nvme_path = {"/swap"};
  config.offload.gradients = OffloadConfig::Gradients::kNvme;
  for (const bool on_device : {false, true})
    EXPECT_EQ(devices(offload_choices(config, on_device, true)), (std::vector{Device::kNvme}));
}

// States have left, and parameters have not.
TEST(AutoOffload, LateUpdatesRuleOutTheRest) {
  Config config = automatic(3);
  config.offload.delayed_update = true;
  config.offload_param.device = Device::kAuto;
  config.offload_optimizer.nvme_path = config.offload_param.nvme_path = {"/nvme"};
  const std::vector<Config> choices = offload_choices(config, true, true);
  EXPECT_EQ(devices(choices), (std::vector{Device::kCpu, Device::kNvme}));
  for (const Config& choice : choices) EXPECT_EQ(choice.offload_param.device, Device::kNone);
}

// Gradients are on the host with the states. A share of these rules out no place of parameters.
TEST(AutoOffload, WhatIsAskedOfGradientsRulesOutSome) {
  Config config = automatic(3);
  config.offload.gradients = OffloadConfig::Gradients::kCpu;
  EXPECT_EQ(devices(offload_choices(config, true, true)), (std::vector{Device::kCpu}));
  EXPECT_EQ(devices(offload_choices(config, false, true)), (std::vector{Device::kNone}));
  config.offload.gradients = OffloadConfig::Gradients::kAuto;
  config.offload_param.device = Device::kAuto;
  for (const double ratio : {1., 0.5}) {
    config.offload_optimizer.ratio = ratio;
    EXPECT_EQ(devices(offload_choices(config, true, true)),
              (std::vector{Device::kNone, Device::kCpu, Device::kNone, Device::kCpu}));
  }
}

// The host updates all of them, or none is narrow.
TEST(AutoOffload, NarrowMomentsLeaveADevice) {
  Config config = automatic();
  config.moment_dtype = DType::kBFloat16;
  config.offload_optimizer.nvme_path = {"/nvme"};
  EXPECT_EQ(devices(offload_choices(config, true, true)), (std::vector{Device::kCpu, Device::kNvme}));
  EXPECT_EQ(devices(offload_choices(config, false, true)), (std::vector{Device::kNone, Device::kNvme}));
  const auto host_bytes = [](const Config& of) {
    return memory_needs(plan_count(1'000'000'000, plan_options(of, /*on_device=*/true)), /*on_device=*/true).host;
  };
  Config wide = config;
  wide.moment_dtype = DType::kFloat32;
  wide.offload_optimizer.device = config.offload_optimizer.device = Device::kCpu;
  EXPECT_EQ(host_bytes(wide) - host_bytes(config), 4e9);
}

// Parameters move in each micro-batch: they go after their states, where both may.
TEST(AutoOffload, ParametersFollowTheirStates) {
  using Param = OffloadParamConfig::Device;
  Config config = automatic(3);
  config.offload_param.device = Param::kAuto;
  config.offload_optimizer.nvme_path = config.offload_param.nvme_path = {"/nvme"};
  const auto pairs = [&](bool on_device) {
    std::vector<std::pair<Device, Param>> found;
    for (const Config& choice : offload_choices(config, on_device, true))
      found.emplace_back(choice.offload_optimizer.device, choice.offload_param.device);
    return found;
  };
  using Pairs = std::vector<std::pair<Device, Param>>;
  EXPECT_EQ(pairs(false),
            (Pairs{{Device::kNone, Param::kNone}, {Device::kNvme, Param::kNone}, {Device::kNvme, Param::kNvme}}));
  EXPECT_EQ(pairs(true), (Pairs{{Device::kNone, Param::kNone},
                                {Device::kCpu, Param::kNone},
                                {Device::kNone, Param::kCpu},
                                {Device::kCpu, Param::kCpu},
                                {Device::kNvme, Param::kNone},
                                {Device::kNvme, Param::kCpu},
                                {Device::kNvme, Param::kNvme}}));
  config.offload_param.device = Param::kNvme;  // as given: the states may be anywhere
  EXPECT_EQ(pairs(false), (Pairs{{Device::kNone, Param::kNvme}, {Device::kNvme, Param::kNvme}}));
  config.offload_param.device = Param::kAuto;
  for (const Device states : {Device::kNone, Device::kCpu, Device::kNvme}) {
    config.offload_optimizer.device = states;
    EXPECT_EQ(pairs(true), (Pairs{{states, Param::kNone}, {states, Param::kCpu}, {states, Param::kNvme}}));
    EXPECT_EQ(pairs(false), (Pairs{{states, Param::kNone}, {states, Param::kNvme}}));
  }
}

// Where neither the device has room for all nor the host for the states.
TEST(AutoOffload, ParametersGoAloneWhereTheHostIsSmall) {
  Config config = automatic(3);
  config.persistence_threshold = 0;
  config.offload_param.device = Device::kAuto;
  const std::vector<Config> choices = offload_choices(config, /*on_device=*/true, /*may_use_files=*/true);
  const auto needs = [](const Config& of) {
    return memory_needs(plan_count(1'000'000'000, plan_options(of, /*on_device=*/true)), /*on_device=*/true);
  };
  // 14 GB without the parameters, which are 2; the states are 14 with the gradients.
  const MemoryLimits limits{.device = MemoryLimit{14e9, "KEY"}, .host = MemoryLimit{13e9, "OTHER"}};
  const OffloadChoice choice = choose_offload(choices, limits, needs, /*on_device=*/true);
  EXPECT_EQ(choice.fits, OffloadChoice::Fit::kYes);
  EXPECT_EQ(choices[choice.index].offload_optimizer.device, Device::kNone);
  EXPECT_EQ(choices[choice.index].offload_param.device, Device::kCpu);
}

TEST(AutoOffload, WhatIsGivenStays) {
  for (const Device given : {Device::kNone, Device::kCpu, Device::kNvme}) {
    Config config = automatic();
    config.offload_optimizer.device = given;
    EXPECT_FALSE(has_auto_offload(config));
    EXPECT_EQ(devices(offload_choices(config, true, true)), std::vector{given});
  }
}

// 1e9 parameters on one device: 16 GB; with states and gradients on the host 2 GB, and 14 GB there.
struct Chosen {
  Device device;
  std::string text;
};
Chosen choose(std::optional<double> device_bytes, std::optional<double> host_bytes) {
  const Config config = automatic();
  MemoryLimits limits;
  if (device_bytes) limits.device = MemoryLimit{*device_bytes, "KEY"};
  if (host_bytes) limits.host = MemoryLimit{*host_bytes, "OTHER"};
  const std::vector<Config> choices = offload_choices(config, /*on_device=*/true, /*may_use_files=*/true);
  const auto needs = [](const Config& of) {
    return memory_needs(plan_count(1'000'000'000, plan_options(of, /*on_device=*/true)), /*on_device=*/true);
  };
  const OffloadChoice choice = choose_offload(choices, limits, needs, /*on_device=*/true);
  const Config& chosen = choices[choice.index];
  return {chosen.offload_optimizer.device, describe_choice(config, chosen, choice)};
}

TEST(AutoOffload, TakesTheFirstThatFits) {
  EXPECT_EQ(choose({}, {}).device, Device::kNone);
  EXPECT_EQ(choose(16e9, {}).device, Device::kNone);
  EXPECT_EQ(choose(16e9, {}).text, "zero_optimization.offload_optimizer.device = \"auto\" becomes \"none\": that fits");
  const Chosen moved = choose(16e9 - 1, 14e9);
  EXPECT_EQ(moved.device, Device::kCpu);
  EXPECT_THAT(moved.text, HasSubstr("becomes \"cpu\": without, each rank needs 16000000000 bytes"));
  EXPECT_THAT(moved.text, HasSubstr("KEY"));
}

// The engine then refuses it, with need, have and what would fit.
TEST(AutoOffload, WhereNothingFitsTakesTheLast) {
  EXPECT_EQ(choose(16e9 - 1, 1e9).device, Device::kCpu);
  EXPECT_THAT(choose(16e9 - 1, 1e9).text, HasSubstr("nothing that it may become fits"));
  EXPECT_THAT(choose({}, {}).text, HasSubstr("no limit of memory is known"));
}

// Buffers of files may need more than what they take away.
TEST(AutoOffload, OnTheCpuWhereNothingFitsTakesWhatNeedsLeast) {
  Config config = automatic();
  config.offload_optimizer.nvme_path = {"/nvme"};
  const std::vector<Config> choices = offload_choices(config, /*on_device=*/false, /*may_use_files=*/true);
  const auto needs = [](const Config& of) {
    return MemoryNeeds{0, of.offload_optimizer.device == Device::kNone ? 5. : 6.};
  };
  const MemoryLimits limits{.device = {}, .host = MemoryLimit{4, "KEY"}};
  EXPECT_EQ(choose_offload(choices, limits, needs, /*on_device=*/false).index, 0);
}

}  // namespace
}  // namespace zeroshard

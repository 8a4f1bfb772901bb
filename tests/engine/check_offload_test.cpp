#include "engine/check_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/format.h"
#include "placement/placement.h"
#include "support/configuration.h"
#include "zeroshard/error.h"
#include "zeroshard/plan.h"

namespace zeroshard {
namespace {

using testing::configuration;

Config offloading(const std::string& key) {
  return configuration(R"({"zero_optimization": {"stage": 3, ")" + key + R"(": {"device": "cpu"}}})").config;
}

TEST(CheckOffload, OnTheCpuEverythingIsInHostMemory) {
  EXPECT_NO_THROW(check_offload(offloading("offload_optimizer"), at::kCPU, ""));
  EXPECT_NO_THROW(check_offload(offloading("offload_param"), at::kCPU, ""));
}

Config in_files(const std::string& more = "") {
  return configuration(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme",
      "nvme_path": "/nvme")" +
                       more + "}}}")
      .config;
}

std::string refusal(const Config& config, c10::Device device, const std::string& external_optimizer) {
  try {
    check_offload(config, device, external_optimizer);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckOffload, FilesAreForZeroshardsOptimizers) {
  EXPECT_EQ(refusal(in_files(), at::kCPU, ""), "");
  EXPECT_EQ(refusal(in_files(), c10::Device(at::kCUDA, 0), ""), "");
  EXPECT_THAT(refusal(in_files(), at::kCPU, "Adafactor"),
              ::testing::AllOf(::testing::HasSubstr("Adafactor"), ::testing::HasSubstr("set \"cpu\"")));
}

TEST(CheckOffload, AShareIsForZeroshardsOptimizers) {
  const Config half = in_files(R"(, "ratio": 0.5)"), none = in_files(R"(, "ratio": 0)");
  EXPECT_EQ(refusal(half, at::kCPU, ""), "");
  EXPECT_THAT(refusal(half, at::kCPU, "Adafactor"), ::testing::HasSubstr("Adafactor"));
  EXPECT_EQ(refusal(half, c10::Device(at::kCUDA, 0), ""), "");
  for (const c10::Device device : {c10::Device(at::kCPU), c10::Device(at::kCUDA, 0)})
    EXPECT_EQ(refusal(none, device, "Adafactor"), "") << device;  // nothing leaves
  for (const double ratio : {-0.5, 1.5, std::nan("")}) {
    Config wrong = half;
    wrong.offload_optimizer.ratio = ratio;
    EXPECT_THAT(refusal(wrong, at::kCPU, ""), ::testing::HasSubstr(concat("offload_optimizer.ratio = ", ratio,
                                                                          ": must be at least 0 and at most 1")));
  }
}

TEST(CheckOffload, NarrowMomentsNeedAnOptimizerThatHasThem) {
  using ::testing::HasSubstr;
  for (const auto& [dtype, name] : {std::pair(DType::kBFloat16, "bf16"), std::pair(kCodes, "int8")}) {
    Config config;
    config.moment_dtype = dtype;
    config.optimizer.emplace();
    EXPECT_EQ(refusal(config, at::kCPU, ""), "");
    config.optimizer->type = OptimizerConfig::Type::kSgd;
    EXPECT_THAT(refusal(config, at::kCPU, ""),
                HasSubstr(concat("zeroshard.moment_dtype = \"", name, "\": SGD without momentum keeps no moments")));
    config.optimizer->momentum = 0.9;
    EXPECT_EQ(refusal(config, at::kCPU, ""), "");
    config.optimizer->type = OptimizerConfig::Type::kMuon;
    EXPECT_THAT(refusal(config, at::kCPU, ""), HasSubstr(concat(name, "\": Muon keeps its momenta in fp32")));
    EXPECT_THAT(refusal(config, at::kCPU, "Adafactor"), HasSubstr(concat(name, "\": Adafactor is an optimizer of")));
  }
}

TEST(CheckOffload, NarrowMomentsAreUpdatedByTheHost) {
  const c10::Device gpu(at::kCUDA, 0);
  Config config = in_files();
  config.moment_dtype = DType::kBFloat16;
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal(config, gpu, ""), "");
  EXPECT_EQ(refusal(config, at::kCPU, ""), "");
  config.offload_optimizer.device = OffloadDevice::kCpu;
  EXPECT_EQ(refusal(config, gpu, ""), "");
  for (const c10::Device device : {c10::Device(at::kCPU), gpu})
    EXPECT_THAT(refusal(config, device, "Adafactor"),
                ::testing::AllOf(HasSubstr("zeroshard.moment_dtype = \"bf16\": Adafactor is an optimizer of your"),
                                 HasSubstr("set \"fp32\"")));
  const auto told = [&](const Config& refused) {
    EXPECT_EQ(refusal(refused, at::kCPU, ""), "");
    const std::string text = refusal(refused, gpu, "");
    EXPECT_THAT(text, HasSubstr("or zeroshard.moment_dtype to \"fp32\""));
    return text;
  };
  Config wrong = config;
  wrong.offload_optimizer.device = OffloadDevice::kNone;
  EXPECT_THAT(told(wrong), HasSubstr("offload_optimizer.device is \"none\": set that to \"cpu\" or \"nvme\""));
  wrong = config;
  for (const double ratio : {0.0, 0.5}) {
    wrong.offload_optimizer.ratio = ratio;
    EXPECT_THAT(told(wrong), HasSubstr(concat("offload_optimizer.ratio is ", ratio, ": set that to 1")));
  }
}

TEST(CheckOffload, LateUpdatesAreOfStatesThatHaveLeftADevice) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  const c10::Device gpu(at::kCUDA, 0);
  Config config = in_files();
  config.offload.delayed_update = true;
  EXPECT_EQ(refusal(config, gpu, ""), "");
  EXPECT_THAT(refusal(config, at::kCPU, ""), AllOf(HasSubstr("delayed_update = true"), HasSubstr("is the CPU")));
  EXPECT_THAT(refusal(config, gpu, "Adafactor"), AllOf(HasSubstr("Adafactor"), HasSubstr("set false")));
  config.offload_optimizer.device = OffloadDevice::kCpu;
  EXPECT_EQ(refusal(config, gpu, ""), "");
  config.offload.gradients = OffloadConfig::Gradients::kCpu;
  EXPECT_EQ(refusal(config, gpu, ""), "");
  const auto told = [&](const auto& change) {
    Config wrong = config;
    change(wrong);
    const std::string text = refusal(wrong, gpu, "");
    EXPECT_THAT(text, HasSubstr("or delayed_update to false"));
    return text;
  };
  EXPECT_THAT(told([](Config& wrong) { wrong.offload_optimizer.device = OffloadDevice::kNone; }),
              HasSubstr("offload_optimizer.device is \"none\": set that to \"cpu\" or \"nvme\""));
  for (const double ratio : {0.0, 0.5})
    EXPECT_THAT(told([&](Config& wrong) { wrong.offload_optimizer.ratio = ratio; }),
                HasSubstr(concat("ratio is ", ratio, ": set that to 1")));
  EXPECT_THAT(told([](Config& wrong) { wrong.offload_param.device = OffloadDevice::kCpu; }),
              HasSubstr("offload_param.device is \"cpu\": set that to \"none\""));
  EXPECT_THAT(told([](Config& wrong) { wrong.offload.gradients = OffloadConfig::Gradients::kDevice; }),
              HasSubstr("zeroshard.offload.gradients is \"device\": set that to \"auto\""));
  EXPECT_THAT(told([](Config& wrong) { wrong.offload.gradients = OffloadConfig::Gradients::kNvme; }),
              HasSubstr("zeroshard.offload.gradients is \"nvme\": set that to \"auto\""));
}

// What is told of units with trained and frozen parameters of that dtype.
std::string told(const PlanOptions& options, DType dtype, bool some_are_frozen,
                 const OffloadOptimizerConfig& states = {}) {
  std::vector<ParamSpec> params{{{"first"}, {8}, dtype, true}, {{"second"}, {9}, dtype, !some_are_frozen}};
  std::vector<UnitLayout> units;
  units.push_back(make_unit_layout("unit", std::move(params), /*world_size=*/1));
  Config config;
  config.offload_param.device = OffloadDevice::kCpu;
  config.offload_optimizer = states;
  ::testing::internal::CaptureStderr();
  tell_offload_param(config, units, place(units, options));
  return ::testing::internal::GetCapturedStderr();
}

TEST(CheckOffload, TellsWhatStaysWithItsStates) {
  PlanOptions options;
  options.stage = 3;
  options.on_device = true;
  options.persistence_threshold = 0;
  options.parameter_tier = Tier::kHost;
  EXPECT_EQ(told(options, DType::kBFloat16, false), "");
  EXPECT_THAT(
      told(options, DType::kFloat32, false),
      ::testing::AllOf(::testing::HasSubstr("zero_optimization.offload_param.device = \"cpu\": 17 elements of fp32"),
                       ::testing::HasSubstr("all of these: set zero_optimization.offload_optimizer.device, too\n")));
  EXPECT_THAT(told(options, DType::kFloat32, false, {.ratio = 0.5, .nvme_path = {}}),
              ::testing::HasSubstr("set zero_optimization.offload_optimizer.device, too, and ratio to 1\n"));
  EXPECT_THAT(told(options, DType::kFloat32, true),
              ::testing::HasSubstr("zero_optimization.offload_param.device = \"cpu\": 8 elements of fp32"));
  options.state_tier = Tier::kHost;
  options.state_share = 0.5;
  EXPECT_EQ(told(options, DType::kBFloat16, false), "");
  EXPECT_THAT(told(options, DType::kFloat32, false, {.device = OffloadDevice::kCpu, .ratio = 0.5, .nvme_path = {}}),
              ::testing::HasSubstr("all of these: set zero_optimization.offload_optimizer.ratio to 1\n"));
  options.state_share = 1;
  options.gradient_tier = Tier::kHost;
  EXPECT_EQ(told(options, DType::kFloat32, false), "");
  options.persistence_threshold = 100;
  EXPECT_EQ(told(options, DType::kFloat32, false), "");
}

TEST(CheckOffload, TheDeviceUpdatesTheRestWithWhatLiesThere) {
  const c10::Device device(at::kCUDA, 1);
  Config config = offloading("offload_optimizer");
  config.offload_optimizer.ratio = 0.5;
  EXPECT_EQ(refusal(config, device, ""), "");
  EXPECT_THAT(refusal(config, device, "Adafactor"), ::testing::HasSubstr("offload_optimizer.ratio = 0.5: Adafactor"));
  Config parameters = config;
  for (const OffloadDevice place : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    parameters.offload_param.device = place;  // it sends what it updates
    for (const c10::Device on : {device, c10::Device(at::kCPU)}) EXPECT_EQ(refusal(parameters, on, ""), "");
  }
  Config gradients = config;
  gradients.offload.gradients = OffloadConfig::Gradients::kCpu;
  EXPECT_THAT(refusal(gradients, device, ""),
              ::testing::AllOf(::testing::HasSubstr("offload.gradients = \"cpu\": "),
                               ::testing::HasSubstr("ratio is 0.5, and the device updates the rest")));
  gradients.offload.gradients = OffloadConfig::Gradients::kNvme;
  gradients.offload_optimizer.device = OffloadDevice::kNvme;
  EXPECT_THAT(refusal(gradients, device, ""), ::testing::AllOf(::testing::HasSubstr("offload.gradients = \"nvme\": "),
                                                               ::testing::HasSubstr("offload_optimizer.ratio is 0.5")));
  Config codes = config;
  codes.moment_dtype = kCodes;
  EXPECT_THAT(refusal(codes, device, ""),
              ::testing::AllOf(::testing::HasSubstr("offload_optimizer.ratio = 0.5: "),
                               ::testing::HasSubstr("on one side: set 1 or 0, or keep moments in fp32")));
}

TEST(CheckOffload, GradientsGoToTheHostWithTheStates) {
  const c10::Device device(at::kCUDA, 1);
  Config config;
  config.stage = 2;
  config.offload.gradients = OffloadConfig::Gradients::kCpu;
  EXPECT_THAT(refusal(config, device, ""),
              ::testing::AllOf(::testing::HasSubstr("offload.gradients = \"cpu\": "),
                               ::testing::HasSubstr("offload_optimizer.device is \"none\": set that to \"cpu\"")));
  config.offload_optimizer.device = OffloadDevice::kCpu;
  config.offload_optimizer.ratio = 0;
  EXPECT_THAT(refusal(config, device, ""), ::testing::HasSubstr("offload_optimizer.ratio is 0: set that to 1"));
  config.offload_optimizer.ratio = 1;
  EXPECT_EQ(refusal(config, device, ""), "");
}

}  // namespace
}  // namespace zeroshard

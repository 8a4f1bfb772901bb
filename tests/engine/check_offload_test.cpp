#include "engine/check_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/format.h"
#include "support/configuration.h"
#include "zeroshard/error.h"

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

TEST(CheckOffload, NarrowMomentsAreUpdatedByTheHost) {
  const c10::Device gpu(at::kCUDA, 0);
  Config config = in_files();
  config.offload.moment_dtype = DType::kBFloat16;
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal(config, gpu, ""), "");
  EXPECT_EQ(refusal(config, at::kCPU, ""), "");
  config.offload_optimizer.device = OffloadDevice::kCpu;
  EXPECT_EQ(refusal(config, gpu, ""), "");
  for (const c10::Device device : {c10::Device(at::kCPU), gpu})
    EXPECT_THAT(
        refusal(config, device, "Adafactor"),
        ::testing::AllOf(HasSubstr("zeroshard.offload.moment_dtype = \"bf16\": Adafactor is an optimizer of your"),
                         HasSubstr("set \"fp32\"")));
  const auto told = [&](const Config& refused) {
    EXPECT_EQ(refusal(refused, at::kCPU, ""), "");
    const std::string text = refusal(refused, gpu, "");
    EXPECT_THAT(text, HasSubstr("or zeroshard.offload.moment_dtype to \"fp32\""));
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

// A unit of two parameters, of which one may be frozen.
std::vector<UnitLayout> units(bool one_is_frozen) {
  std::vector<ParamSpec> params{{{"first"}, {8}, DType::kFloat32, true},
                                {{"second"}, {8}, DType::kFloat32, !one_is_frozen}};
  std::vector<UnitLayout> made;
  made.push_back(make_unit_layout("unit", std::move(params), /*world_size=*/1));
  return made;
}

TEST(CheckOffload, OnOtherDevicesTrainedParametersLeaveWithTheirStates) {
  const c10::Device gpu(at::kCUDA, 1);
  EXPECT_NO_THROW(check_offload(configuration("{}").config, gpu, ""));
  EXPECT_NO_THROW(check_offload(offloading("offload_optimizer"), gpu, ""));
  const Config alone = offloading("offload_param");
  Config both = alone;
  both.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  EXPECT_NO_THROW(check_offload_param(both, gpu, units(false), /*rank=*/0));
  EXPECT_NO_THROW(check_offload_param(alone, gpu, units(true), /*rank=*/0));
  EXPECT_NO_THROW(check_offload_param(alone, at::kCPU, units(false), /*rank=*/0));
  both.offload_optimizer.ratio = 0;
  EXPECT_THROW(check_offload_param(both, gpu, units(false), /*rank=*/0), ConfigError);
  try {
    check_offload_param(alone, gpu, units(false), /*rank=*/0);
    FAIL() << "it was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("zero_optimization.offload_param.device = \"cpu\": "));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("offload_optimizer.device is \"none\": set that to \"cpu\", too"));
  }
}

TEST(CheckOffload, TrainedParametersInFilesLieWithTheirStates) {
  const auto config = [](const std::string& optimizer) {
    return configuration(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"},
        "offload_optimizer": {"nvme_path": "/a", "device": ")" +
                         optimizer + R"("}}})")
        .config;
  };
  const auto refused = [](const Config& each, c10::Device device, bool one_is_frozen) -> std::string {
    try {
      check_offload_param(each, device, units(one_is_frozen), /*rank=*/0);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  for (const c10::Device device : {c10::Device(at::kCPU), c10::Device(at::kCUDA, 0)}) {
    EXPECT_EQ(refused(config("nvme"), device, false), "");
    for (const std::string optimizer : {"none", "cpu"}) {
      EXPECT_EQ(refused(config(optimizer), device, true), "");
      EXPECT_THAT(refused(config(optimizer), device, false),
                  ::testing::AllOf(::testing::HasSubstr("offload_optimizer.device is \"" + optimizer + "\""),
                                   ::testing::HasSubstr("set that to \"nvme\", too")));
    }
  }
}

TEST(CheckOffload, TheDeviceUpdatesTheRestWithWhatLiesThere) {
  const c10::Device device(at::kCUDA, 1);
  Config config = offloading("offload_optimizer");
  config.offload_optimizer.ratio = 0.5;
  EXPECT_EQ(refusal(config, device, ""), "");
  EXPECT_THAT(refusal(config, device, "Adafactor"), ::testing::HasSubstr("offload_optimizer.ratio = 0.5: Adafactor"));
  Config parameters = config;
  parameters.offload_param.device = OffloadDevice::kCpu;
  EXPECT_THAT(refusal(parameters, device, ""), ::testing::HasSubstr("offload_param.device is \"cpu\""));
  EXPECT_EQ(refusal(parameters, at::kCPU, ""), "");  // nothing leaves
  Config gradients = config;
  gradients.offload.gradients = OffloadConfig::Gradients::kCpu;
  EXPECT_THAT(refusal(gradients, device, ""), ::testing::HasSubstr("offload.gradients = \"cpu\": "));
}

}  // namespace
}  // namespace zeroshard

#include "engine/check_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/configuration.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::configuration;

Config offloading(const std::string& key) {
  return configuration(R"({"zero_optimization": {"stage": 3, ")" + key + R"(": {"device": "cpu"}}})").config;
}

TEST(CheckOffload, OnTheCpuEverythingIsInHostMemory) {
  EXPECT_NO_THROW(check_offload(offloading("offload_optimizer"), at::kCPU));
  EXPECT_NO_THROW(check_offload(offloading("offload_param"), at::kCPU));
}

TEST(CheckOffload, ThereAreNoFilesYet) {
  const Config config = configuration(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme",
      "nvme_path": "/nvme"}}})")
                            .config;
  EXPECT_THROW(check_offload(config, at::kCPU), ConfigError);
}

TEST(CheckOffload, OnOtherDevicesParametersStay) {
  const c10::Device gpu(at::kCUDA, 1);
  EXPECT_NO_THROW(check_offload(configuration("{}").config, gpu));
  EXPECT_NO_THROW(check_offload(offloading("offload_optimizer"), gpu));
  try {
    check_offload(offloading("offload_param"), gpu);
    FAIL() << "it was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("zero_optimization.offload_param.device = \"cpu\": "));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the ranks run on cuda:1"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("set \"none\""));
  }
}

TEST(CheckOffload, AUnitsStatesLeaveTheDeviceTogether) {
  Config config = offloading("offload_optimizer");
  config.offload_optimizer.ratio = 0.5;
  EXPECT_NO_THROW(check_offload(config, at::kCPU));  // nothing leaves
  EXPECT_THROW(check_offload(config, c10::Device(at::kCUDA, 1)), ConfigError);
}

}  // namespace
}  // namespace zeroshard

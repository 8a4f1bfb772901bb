#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/accelerator/device.h"
#include "support/accelerator/memory.h"
#include "support/expect.h"
#include "zeroshard/error.h"
#include "zeroshard/world.h"

namespace zeroshard::accelerator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RankEnvironment rank_of_host(int rank, int ranks) {
  return {rank, ranks, rank, ranks, "a test"};
}

std::string error_of(const std::string& name, const RankEnvironment& ranks = {}) {
  try {
    choose_device(name, "train.device", ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ChooseDevice, EachRankOfAHostHasItsOwn) {
  start();
  for (const char* name : {"auto", "simulated"}) {
    EXPECT_EQ(choose_device(name, "", {}), device(0));
    EXPECT_EQ(choose_device(name, "", rank_of_host(2, 4)), device(2));
  }
  EXPECT_EQ(choose_device("cpu", "", rank_of_host(2, 4)), c10::Device(c10::kCPU));
  EXPECT_EQ(choose_device("simulated:1", "", {}), device(1));
}

TEST(ChooseDevice, MoreRanksThanDevicesAreRefusedOnEachRank) {
  start();
  for (const int rank : {0, kDevices}) {
    for (const char* name : {"auto", "simulated"})
      EXPECT_THAT(error_of(name, rank_of_host(rank, kDevices + 1)),
                  AllOf(HasSubstr("train.device is \"" + std::string(name) +
                                  "\": 9 ranks on this host need a device each, "
                                  "and it shows 8"),
                        HasSubstr("or say cpu")));
    EXPECT_EQ(error_of("cpu", rank_of_host(rank, kDevices + 1)), "");
  }
  RankEnvironment untold = rank_of_host(kDevices, kDevices + 1);  // the launcher does not say how many there are
  untold.local_world_size = 0;
  EXPECT_THAT(error_of("auto", untold), HasSubstr("9 ranks"));
}

TEST(ChooseDevice, WrongNamesAreTold) {
  start();
  for (const char* name : {"gpu", "", "cuda:", "cuda:x", "meta", "Auto"})
    EXPECT_THAT(error_of(name), HasSubstr("train.device is \"" + std::string(name) + "\": it must be auto, cpu, cuda"));
  EXPECT_THAT(error_of("simulated:8"), HasSubstr("this host shows 8, numbered from 0"));
  EXPECT_THAT(error_of("simulated:1", rank_of_host(0, 2)), HasSubstr("all ranks of this host would share it"));
  EXPECT_THAT(error_of("xpu"),
              AllOf(HasSubstr("train.device is \"xpu\": this build has no XPU"), HasSubstr("say cpu")));
}

}  // namespace
}  // namespace zeroshard::accelerator

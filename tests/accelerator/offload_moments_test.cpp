// Moments in bf16 and in 8 bits beside simulated devices: the host updates them, on its memory or in files.
#include <gmock/gmock.h>

#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::Result;
using test::Scenario;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using Device = OffloadOptimizerConfig::Device;

class NarrowMoments : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/5); }
  void TearDown() override { end_on_devices(); }
  static Scenario scenario(DType dtype, int64_t accumulation = 1, DType moments = DType::kBFloat16) {
    Scenario made = test::make_scenario(std::get<1>(GetParam()), std::get<2>(GetParam()));
    made.config.compute_dtype = dtype;
    made.config.grad_accumulation_steps = accumulation;
    made.config.moment_dtype = moments;
    made.model.ballast = 20'000;
    made.model.uneven_ballast = true;
    made.steps = 3;
    return made;
  }
  Scenario offloading(Scenario scenario, Device device) const {
    scenario.config.offload_optimizer.device = device;
    if (device == Device::kNvme) scenario.config.offload_optimizer.nvme_path = {directory_.path()};
    return on_devices(std::move(scenario));
  }

  TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, NarrowMoments, ::testing::ValuesIn(cases_of_all_stages()));

TEST_P(NarrowMoments, HaveTheBitsOfTheCpuInThePlannedMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t accumulation : {1, 2}) {
      const DType moments = accumulation == 2 ? kCodes : DType::kBFloat16;
      const Scenario on_cpu = scenario(dtype, accumulation, moments);
      const Result expected = test::train(on_cpu);
      for (const Device device : {Device::kCpu, Device::kNvme}) {
        for (const auto gradients : {OffloadConfig::Gradients::kAuto, OffloadConfig::Gradients::kDevice}) {
          Scenario offloads = offloading(on_cpu, device);
          offloads.config.offload.gradients = gradients;
          const Result result = test::train(offloads);
          ASSERT_FALSE(HasFailure());
          EXPECT_TRUE(result.values.equal(expected.values)) << on_cpu.text();
          expect_as_planned(on_cpu, result);
          expect_no_race(on_cpu);
          const std::string tier = device == Device::kCpu ? "host" : "file";
          EXPECT_GT(planned(result, "moments", tier), 0);
          if (moments != kCodes) {
            EXPECT_EQ(planned(result, "moments", tier), planned(result, "master weights", tier)) << on_cpu.text();
          }
          EXPECT_EQ(planned(result, "moments", "device"), 0);
        }
      }
    }
  }
}

// By the device's own kernels. Nothing leaves the device.
TEST_P(NarrowMoments, OfADeviceHaveTheBitsOfTheCpuInThePlannedMemory) {
  using Type = OptimizerConfig::Type;
  for (const Type type : {Type::kAdamW, Type::kSgd, Type::kLion, Type::kAdagrad}) {
    Scenario on_cpu = scenario(type == Type::kLion ? DType::kFloat32 : DType::kBFloat16, 1, kCodes);
    on_cpu.config.optimizer->type = type;
    if (type == Type::kSgd) on_cpu.config.optimizer->momentum = 0.9;
    const Result expected = test::train(on_cpu), result = test::train(on_devices(on_cpu));
    ASSERT_FALSE(HasFailure());
    EXPECT_TRUE(result.values.equal(expected.values)) << on_cpu.text();
    expect_as_planned(on_cpu, result);
    expect_no_race(on_cpu);
    EXPECT_GT(planned(result, "moments", "device"), 0);
    EXPECT_EQ(planned(result, "moments", "host"), 0);
  }
}

// By LibTorch's operations, whose results differ in the last bits.
TEST_P(NarrowMoments, OfADeviceWithoutKernelsAreNearTheCpus) {
  Scenario on_cpu = scenario(DType::kFloat32, 1, kCodes);
  const Result expected = test::train(on_cpu);
  use_own_kernels(false);
  const Result result = test::train(on_devices(on_cpu));
  use_own_kernels(true);
  ASSERT_FALSE(HasFailure());
  EXPECT_LE((expected.values - result.values).abs().max().item<float>(), 1e-4F);
  expect_no_race(on_cpu);
}

TEST_P(NarrowMoments, CheckpointsGoBetweenTiers) {
  for (const DType moments : {DType::kBFloat16, kCodes}) {
    const Scenario on_host = offloading(scenario(DType::kBFloat16, 1, moments), Device::kCpu);
    const Scenario in_files = offloading(scenario(DType::kBFloat16, 1, moments), Device::kNvme);
    const Scenario on_device = on_devices(scenario(DType::kBFloat16, 1, moments));
    std::vector<const Scenario*> all{&on_host, &in_files};
    if (moments == kCodes) all.push_back(&on_device);
    for (const Scenario* const saving : all) {
      const TemporaryDirectory root;
      const SavedRun run = train_and_save(*saving, root.path());
      for (const Scenario* const loading : all)
        expect_same_end(*loading, run, [&](test::SavingRank& rank) { rank.engine->load_checkpoint(root.path()); });
    }
  }
}

// A device has no moments in bf16, and codes of whole parameters alone.
TEST_P(NarrowMoments, AreRefusedWhereStatesStayOnTheDevice) {
  Scenario part = offloading(scenario(DType::kBFloat16), Device::kCpu);
  part.config.offload_optimizer.ratio = 0.5;
  Scenario coded_part = part;
  coded_part.config.moment_dtype = kCodes;
  for (const auto& [refused, told] :
       {std::pair(on_devices(scenario(DType::kBFloat16)), "offload_optimizer.device is \"none\": set that to"),
        std::pair(part, "offload_optimizer.ratio is 0.5: set that to 1"),
        std::pair(coded_part, "on one side: set 1 or 0, or keep moments in fp32 (by zeroshard.moment_dtype, or by")}) {
    test::ThreadWorld world(refused);
    for (const std::string& error : world.run([](test::Rank& rank) {
           EXPECT_THROW(rank.make_engine(), ConfigError);
           rank.make_engine();
         })) {
      EXPECT_THAT(error, HasSubstr(refused.config.moment_dtype == kCodes ? "offload_optimizer.ratio = 0.5: "
                                                                         : "zeroshard.moment_dtype = \"bf16\": "));
      EXPECT_THAT(error, HasSubstr(told));
    }
  }
}

}  // namespace
}  // namespace zeroshard::accelerator

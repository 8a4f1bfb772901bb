// What the plan counts where gradients, or a part of the states, stay on a device.
#include <gtest/gtest.h>

#include <map>

#include "base/align.h"
#include "file/chunk_layout.h"
#include "placement/placement.h"
#include "plan/buffer_sizes.h"
#include "plan/plan_ledger.h"

namespace zeroshard {
namespace {

constexpr int64_t kOffloadNumel = 10 * kBlockNumel;

PlanOptions offload_options(int stage, int world_size) {
  PlanOptions options;
  options.stage = stage;
  options.world_size = world_size;
  options.persistence_threshold = 0;
  return options;
}

UnitLayout offloaded_unit(const std::string& name, int64_t numel, int world_size, DType dtype = DType::kBFloat16) {
  return make_unit_layout(name, {{{name + ".weight"}, {numel}, dtype, /*requires_grad=*/true}}, world_size);
}

int64_t held_by(const PlanReport& report, Category category) {
  return report.bytes.at(category, Tier::kDevice);
}

TEST(PlanOffload, GradientsMayStayOnTheDevice) {
  using Gradients = OffloadConfig::Gradients;
  Config config;
  config.stage = 2;
  const auto options_of = [&](OffloadDevice states, Gradients gradients, bool on_device = true) {
    config.offload_optimizer.device = states;
    config.offload.gradients = gradients;
    return plan_options(config, on_device);
  };
  for (const OffloadDevice states : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    EXPECT_EQ(options_of(states, Gradients::kAuto).gradient_tier, Tier::kHost);
    EXPECT_EQ(options_of(states, Gradients::kCpu).gradient_tier, Tier::kHost);
    EXPECT_EQ(options_of(states, Gradients::kDevice).gradient_tier, Tier::kDevice);
    for (const Gradients gradients : {Gradients::kAuto, Gradients::kDevice, Gradients::kCpu})
      EXPECT_EQ(options_of(states, gradients, /*on_device=*/false).gradient_tier, Tier::kDevice);
  }
  EXPECT_EQ(options_of(OffloadDevice::kNone, Gradients::kDevice).gradient_tier, Tier::kDevice);
}

// On ranks on the CPU with any share of the states, beside a device with all of them.
TEST(PlanOffload, GradientsMayBeInFilesWithTheStates) {
  Config config;
  config.stage = 2;
  config.offload.gradients = OffloadConfig::Gradients::kNvme;
  const auto tier_of = [&](OffloadDevice states, double ratio, bool on_device) {
    config.offload_optimizer.device = states;
    config.offload_optimizer.ratio = ratio;
    return plan_options(config, on_device).gradient_tier;
  };
  for (const bool on_device : {false, true}) {
    EXPECT_EQ(tier_of(OffloadDevice::kNvme, 1, on_device), Tier::kFile);
    EXPECT_EQ(tier_of(OffloadDevice::kNvme, 0.5, on_device), on_device ? Tier::kDevice : Tier::kFile);
    EXPECT_EQ(tier_of(OffloadDevice::kNvme, 0, on_device), Tier::kDevice);
    EXPECT_EQ(tier_of(OffloadDevice::kNone, 1, on_device), Tier::kDevice);
  }
}

// Their sums over micro-batches, too: memory has the ring and the buffers of the files.
TEST(PlanOffload, GradientsInFilesTakeBuffersAlone) {
  for (const int stage : {1, 2, 3}) {
    for (const bool on_device : {false, true}) {
      SCOPED_TRACE(::testing::Message() << stage << ", " << on_device);
      const std::vector<UnitLayout> units{offloaded_unit("a", 5 * kChunkNumel, 2),
                                          offloaded_unit("b", kOffloadNumel, 2)};
      PlanOptions options = offload_options(stage, 2);
      options.on_device = on_device;
      options.state_tier = options.gradient_tier = Tier::kFile;
      options.grad_accumulation_steps = 3;
      options.swap_buffers = 2;
      const PlanReport report = plan_ledger(units, options);
      const int64_t numel = (5 * kChunkNumel + kOffloadNumel) / 2;
      EXPECT_EQ(report.bytes.at(Category::kGradients, Tier::kFile), 4 * numel);
      EXPECT_EQ(report.bytes.at(Category::kGradients, Tier::kDevice), 0);
      EXPECT_EQ(report.bytes.at(Category::kGradients, Tier::kHost), 0);
      EXPECT_GT(report.bytes.at(Category::kReduceRing, Tier::kDevice), 0);
      PlanOptions in_memory = options;
      in_memory.gradient_tier = on_device ? Tier::kHost : Tier::kDevice;
      const Tier memory = on_device ? Tier::kHost : Tier::kDevice;
      const int64_t sums = 8 * ceil_div(5 * kChunkNumel / 2, kSumNumel) + 8 * ceil_div(kOffloadNumel / 2, kSumNumel);
      EXPECT_EQ(report.bytes.at(Category::kSwap, memory),
                plan_ledger(units, in_memory).bytes.at(Category::kSwap, memory) + 2 * 4 * kChunkNumel + sums);
    }
  }
}

// With a part of their states: what the device updates passes through its buffers, and no more.
TEST(PlanOffload, ParametersLeaveWithAShareOfTheirStates) {
  PlanOptions options = offload_options(3, 1);
  options.on_device = true;
  options.parameter_tier = options.state_tier = Tier::kHost;
  const auto buffers = [&](int64_t numel, double share, DType dtype = DType::kBFloat16) {
    options.state_share = share;
    return plan_ledger(std::vector<UnitLayout>{offloaded_unit("a", numel, 1, dtype)}, options).shard_copies;
  };
  EXPECT_EQ(buffers(9 * kCopiedNumel, 0.5), (RingClass{2 * kCopiedNumel, 2, 1}));
  EXPECT_EQ(buffers(2 * kCopiedNumel, 0.75), (RingClass{kCopiedNumel, 1, 1}));  // a quarter of it, in 2 bytes each
  EXPECT_EQ(buffers(kBlockNumel, 0.75), RingClass{});                           // the host updates all
  EXPECT_EQ(buffers(9 * kCopiedNumel, 1), RingClass{});
  EXPECT_EQ(buffers(9 * kCopiedNumel, 0.5, DType::kFloat32), RingClass{});  // they stay
  options.state_share = 0.25;
  const std::vector<UnitLayout> units{offloaded_unit("a", 2 * kCopiedNumel, 1)};
  const PlanReport report = plan_ledger(units, options);
  EXPECT_EQ(report.parameter_copies, RingClass{});
  EXPECT_EQ(report.bytes.at(Category::kParameters, Tier::kHost), 4 * kCopiedNumel);
  EXPECT_EQ(report.bytes.at(Category::kMoments, Tier::kHost), 4 * kCopiedNumel);
  EXPECT_EQ(held_by(report, Category::kMoments), 12 * kCopiedNumel);
  const PlannedBytes counted = plan_count(1'000'000, options);
  EXPECT_EQ(counted.parameters, 0);
  EXPECT_EQ(counted.host.parameters, 2e6);
  EXPECT_EQ(counted.moments, 6e6);
}

// As without offload, and through two buffers of the host to the update.
TEST(PlanOffload, GradientsThatStayAreFetchedInPieces) {
  for (const int stage : {1, 2, 3}) {
    for (const Tier tier : {Tier::kHost, Tier::kFile}) {
      for (const int64_t accumulation : {1, 3}) {
        SCOPED_TRACE(::testing::Message() << stage << ", " << name_of(tier) << ", " << accumulation);
        const int64_t numel = 5 * kFetchedNumel;
        const std::vector<UnitLayout> units{offloaded_unit("a", numel, 2), offloaded_unit("b", kOffloadNumel, 2),
                                            offloaded_unit("c", kOffloadNumel, 2)};
        PlanOptions options = offload_options(stage, 2);
        options.on_device = true;
        options.grad_accumulation_steps = accumulation;
        const PlanReport without = plan_ledger(units, options);
        EXPECT_EQ(without.gradient_fetch.bytes(), 0);
        options.state_tier = tier;
        const PlanReport report = plan_ledger(units, options);
        EXPECT_EQ(held_by(report, Category::kGradients), held_by(without, Category::kGradients));
        EXPECT_EQ(held_by(report, Category::kReduceRing), held_by(without, Category::kReduceRing));
        EXPECT_EQ(report.bytes.at(Category::kGradients, Tier::kHost), 0);
        EXPECT_EQ(report.gradient_fetch, (RingClass{(accumulation > 1 ? 4 : 2) * kFetchedNumel, 2, 3}));
        EXPECT_EQ(report.bytes.at(Category::kPinned, Tier::kHost),
                  report.gradient_fetch.bytes() + report.parameter_copies.bytes());
        options.gradient_tier = Tier::kHost;
        EXPECT_EQ(plan_ledger(units, options).gradient_fetch.bytes(), 0);
      }
    }
  }
  const std::vector<UnitLayout> one{offloaded_unit("a", kOffloadNumel, 1)};
  PlanOptions options = offload_options(1, 1);
  options.state_tier = Tier::kHost;
  EXPECT_EQ(plan_ledger(one, options).gradient_fetch.slots, 1);  // there is no second piece
}

// In half the memory, wherever the host updates all; the device's own kernels keep fp32.
// They wait on the host, in the dtype of the parameters.
TEST(PlanOffload, NewParametersOfALateUpdate) {
  for (const int stage : {1, 3}) {
    const std::vector<UnitLayout> units{offloaded_unit("a", kOffloadNumel, 2),
                                        offloaded_unit("b", kOffloadNumel, 2, DType::kFloat32)};
    PlanOptions options = offload_options(stage, 2);
    options.on_device = true;
    options.state_tier = options.gradient_tier = Tier::kHost;
    const PlanReport now = plan_ledger(units, options);
    options.delayed_update = true;
    const PlanReport late = plan_ledger(units, options);
    EXPECT_EQ(now.pending_parameters, 0);
    EXPECT_EQ(late.pending_parameters, kOffloadNumel / 2 * (2 + 4));
    EXPECT_EQ(late.bytes.total(Tier::kHost), now.bytes.total(Tier::kHost) + late.pending_parameters);
    EXPECT_EQ(late.bytes.total(Tier::kDevice), now.bytes.total(Tier::kDevice));
  }
}

TEST(PlanOffload, MomentsInBf16) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kFile}) {
    for (const bool on_device : {false, true}) {
      for (const double share : {0.3, 1.0}) {
        if (tier == Tier::kHost && !on_device) continue;
        SCOPED_TRACE(::testing::Message() << name_of(tier) << ", " << on_device << ", " << share);
        const std::vector<UnitLayout> units{offloaded_unit("a", 5 * kBlockNumel, 1)};
        PlanOptions options = offload_options(2, 1);
        options.on_device = on_device;
        options.state_tier = tier;
        options.state_share = share;
        const PlanReport wide = plan_ledger(units, options);
        options.moment_dtype = DType::kBFloat16;
        const PlanReport narrow = plan_ledger(units, options);
        const bool device_updates = on_device && (tier == Tier::kDevice || share < 1);
        const int64_t factor = device_updates ? 1 : 2;
        for (const Tier each : {Tier::kDevice, Tier::kHost, Tier::kFile}) {
          EXPECT_EQ(narrow.bytes.at(Category::kMoments, each) * factor, wide.bytes.at(Category::kMoments, each));
          EXPECT_EQ(narrow.bytes.at(Category::kMasterWeights, each), wide.bytes.at(Category::kMasterWeights, each));
        }
        if (tier != Tier::kFile) continue;
        const Tier memory = on_device ? Tier::kHost : Tier::kDevice;
        const int64_t numel = share < 1 ? 2 * kBlockNumel : 5 * kBlockNumel;
        // Each slot of 5 blocks of 16 bits ends with half a page that nothing uses.
        const int64_t record = device_updates ? 12 * numel : 8 * numel + (share < 1 ? 0 : 2 * 2048);
        const int64_t sums = 3 * ceil_div(numel, kSumNumel) * int64_t{sizeof(uint64_t)};
        EXPECT_EQ(narrow.bytes.at(Category::kSwap, memory), record + sums);
      }
    }
  }
  PlanOptions options = offload_options(2, 1);
  options.moment_dtype = DType::kBFloat16;
  options.state_tier = Tier::kFile;
  EXPECT_EQ(plan_count(1000, options).file.moments, 4000);
  EXPECT_EQ(plan_count(1000, options).file.master_weights, 4000);
}

// A byte each, and in memory one scale for each 256: 2 * (1 + 4/256) for AdamW. Small parameters keep fp32.
TEST(PlanOffload, MomentsInEightBits) {
  constexpr int64_t kLarge = 5 * kBlockNumel + 3, kSmall = kBlockNumel;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kFile}) {
    for (const bool on_device : {false, true}) {
      if (tier == Tier::kHost && !on_device) continue;
      SCOPED_TRACE(::testing::Message() << name_of(tier) << ", " << on_device);
      const std::vector<UnitLayout> units{make_unit_layout(
          "a", {{{"w"}, {kLarge}, DType::kBFloat16, true, false, true}, {{"b"}, {kSmall}, DType::kBFloat16, true}}, 1)};
      PlanOptions options = offload_options(2, 1);
      options.on_device = on_device;
      options.state_tier = tier;
      options.moment_dtype = kCodes;
      const PlanReport report = plan_ledger(units, options);
      const int64_t padded = units[0].groups[1].layout.padded_numel();
      const int64_t codes = 2 * padded, scales = 2 * padded / 64;
      const Tier memory = on_device && tier != Tier::kDevice ? Tier::kHost : Tier::kDevice;
      EXPECT_EQ(padded, 6 * kBlockNumel);
      std::map<Tier, int64_t> expected;
      expected[tier] += codes + 8 * kSmall;
      expected[memory] += scales;
      for (const Tier each : {Tier::kDevice, Tier::kHost, Tier::kFile})
        EXPECT_EQ(report.bytes.at(Category::kMoments, each), expected[each]) << name_of(each);
    }
  }
  PlanOptions options = offload_options(2, 1);
  options.moment_dtype = kCodes;
  EXPECT_EQ(plan_count(6400, options).moments, 2 * (6400 + 100));
  options.state_tier = Tier::kFile;
  EXPECT_EQ(plan_count(6400, options).file.moments, 2 * 6400);
  EXPECT_EQ(plan_count(6400, options).moments, 2 * 100);
}

// The host has master weights of its part, of fp32 parameters, too, which the device's part does not need.
TEST(PlanOffload, AShareBesideADevice) {
  for (const Tier tier : {Tier::kHost, Tier::kFile}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      const std::vector<UnitLayout> units{offloaded_unit("a", 10 * kBlockNumel, 1, dtype)};
      PlanOptions options = offload_options(2, 1);
      options.on_device = true;
      options.state_tier = tier;
      options.state_share = 0.25;  // 3 of 10 blocks
      const PlanReport report = plan_ledger(units, options);
      EXPECT_EQ(report.bytes.at(Category::kMoments, tier), 8 * 3 * kBlockNumel);
      EXPECT_EQ(held_by(report, Category::kMoments), 8 * 7 * kBlockNumel);
      EXPECT_EQ(report.bytes.at(Category::kMasterWeights, tier), 4 * 3 * kBlockNumel);
      EXPECT_EQ(held_by(report, Category::kMasterWeights), dtype == DType::kFloat32 ? 0 : 4 * 7 * kBlockNumel);
      EXPECT_EQ(report.gradient_fetch.slot_bytes, 3 * kBlockNumel * element_size(dtype));
      EXPECT_EQ(report.parameter_copies.slot_bytes, dtype == DType::kFloat32 ? 0 : 2 * 3 * kBlockNumel);
      const GroupPlacement& place = report.placements[0].groups[0];
      EXPECT_EQ(place.numel_of_host(units[0].groups[0].layout), 3 * kBlockNumel);
      EXPECT_EQ(place.master_weights.bytes(units[0].groups[0].layout),
                4 * (dtype == DType::kFloat32 ? 3 : 10) * kBlockNumel);
    }
  }
  PlanOptions options = offload_options(1, 1);
  options.compute_dtype = DType::kFloat32;
  options.on_device = true;
  options.state_tier = Tier::kHost;
  options.state_share = 0.25;
  EXPECT_EQ(plan_count(1000, options).master_weights, 0);
  EXPECT_EQ(plan_count(1000, options).host.master_weights, 1000);
}

}  // namespace
}  // namespace zeroshard

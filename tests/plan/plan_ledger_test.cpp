#include "plan/plan_ledger.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/align.h"
#include "base/format.h"
#include "plan/buffer_sizes.h"
#include "plan/swap_plan.h"
#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

UnitLayout unit(const std::string& name, int64_t numel, int world_size, DType dtype = DType::kBFloat16,
                bool requires_grad = true) {
  return make_unit_layout(name, {{{name + ".weight"}, {numel}, dtype, requires_grad}}, world_size);
}

PlanOptions at(int stage, int world_size) {
  PlanOptions options;
  options.stage = stage;
  options.world_size = world_size;
  options.persistence_threshold = 0;
  return options;
}

int64_t held(const PlanReport& report, Category category) {
  return report.bytes.at(category, Tier::kDevice);
}

// 10 blocks of 1024: 3 ranks own 4 blocks each, so 2 blocks of padding.
constexpr int64_t kNumel = 10 * kBlockNumel, kShard = 4 * kBlockNumel, kPadded = 12 * kBlockNumel;

TEST(PlanLedger, Bf16ByStage) {
  struct Expected {
    int64_t parameters, gradients, master, moments, gather, reduce;
  };
  const Expected expected[] = {{2 * kPadded, 2 * kPadded, 4 * kPadded, 8 * kPadded, 0, 0},
                               {2 * kPadded, 2 * kPadded, 4 * kShard, 8 * kShard, 0, 0},
                               {2 * kPadded, 2 * kShard, 4 * kShard, 8 * kShard, 0, 2 * kPadded},
                               {2 * kShard, 2 * kShard, 4 * kShard, 8 * kShard, 2 * kPadded, 2 * kPadded}};
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const std::vector<UnitLayout> units{unit("a", kNumel, 3)};
    const PlanReport report = plan_ledger(units, at(stage, 3));
    EXPECT_EQ(held(report, Category::kParameters), expected[stage].parameters);
    EXPECT_EQ(held(report, Category::kGradients), expected[stage].gradients);
    EXPECT_EQ(held(report, Category::kMasterWeights), expected[stage].master);
    EXPECT_EQ(held(report, Category::kMoments), expected[stage].moments);
    EXPECT_EQ(held(report, Category::kGatherRing), expected[stage].gather);
    EXPECT_EQ(held(report, Category::kReduceRing), expected[stage].reduce);
    EXPECT_EQ(report.bytes.total(Tier::kDevice), report.bytes.total());
  }
}

TEST(PlanLedger, StatesThatLeaveTheDeviceAreCountedWhereTheyLie) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const std::vector<UnitLayout> units{unit("a", kNumel, 3)};
    const PlanReport without = plan_ledger(units, at(stage, 3));
    PlanOptions options = at(stage, 3);
    options.state_tier = options.gradient_tier = Tier::kHost;
    const PlanReport report = plan_ledger(units, options);
    EXPECT_EQ(held(report, Category::kParameters), held(without, Category::kParameters));
    EXPECT_EQ(held(report, Category::kGatherRing), held(without, Category::kGatherRing));
    for (const Category category : {Category::kGradients, Category::kMasterWeights, Category::kMoments})
      EXPECT_EQ(held(report, category), 0) << name_of(category);
    EXPECT_EQ(report.bytes.at(Category::kGradients, Tier::kHost), 2 * kShard);
    EXPECT_EQ(report.bytes.at(Category::kMasterWeights, Tier::kHost), 4 * kShard);
    EXPECT_EQ(report.bytes.at(Category::kMoments, Tier::kHost), 8 * kShard);
    EXPECT_EQ(report.bytes.total(Tier::kFile), 0);
  }
}

TEST(PlanLedger, AShareOfTheStatesIsCountedOnBothTiers) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const std::vector<UnitLayout> units{unit("a", kNumel, 3), unit("small", 1, 3)};
    PlanOptions options = at(stage, 3);
    options.state_tier = Tier::kFile;
    const PlanReport whole = plan_ledger(units, options);
    options.state_share = 0.3;  // of 4 blocks, and of 1: 2, and 1
    const PlanReport report = plan_ledger(units, options);
    EXPECT_EQ(report.bytes.at(Category::kMasterWeights, Tier::kFile), 4 * 3 * kBlockNumel);
    EXPECT_EQ(report.bytes.at(Category::kMoments, Tier::kFile), 8 * 3 * kBlockNumel);
    EXPECT_EQ(held(report, Category::kMasterWeights), 4 * 2 * kBlockNumel);
    EXPECT_EQ(held(report, Category::kMoments), 8 * 2 * kBlockNumel);
    EXPECT_LT(held(report, Category::kSwap), held(whole, Category::kSwap));
    for (const Category category : {Category::kParameters, Category::kGradients, Category::kReduceRing})
      EXPECT_EQ(held(report, category), held(whole, category)) << name_of(category);
    options.state_share = 0;
    EXPECT_EQ(plan_ledger(units, options).bytes, plan_ledger(units, at(stage, 3)).bytes);
  }
}

// The host updates from files what a device has: fp32 parameters are not their own master weights.
TEST(PlanLedger, FilesBesideADevice) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const std::vector<UnitLayout> units{unit("a", kNumel, 3, dtype)};
    PlanOptions options = at(2, 3);
    options.on_device = true;
    options.state_tier = Tier::kFile;
    options.gradient_tier = Tier::kHost;
    const PlanReport report = plan_ledger(units, options);
    EXPECT_EQ(report.bytes.at(Category::kMasterWeights, Tier::kFile), 4 * kShard);
    EXPECT_EQ(report.bytes.at(Category::kMoments, Tier::kFile), 8 * kShard);
    EXPECT_EQ(report.bytes.at(Category::kGradients, Tier::kHost), element_size(dtype) * kShard);
    EXPECT_GT(report.bytes.at(Category::kSwap, Tier::kHost), 0);
    EXPECT_EQ(held(report, Category::kSwap), 0);
    EXPECT_EQ(report.parameter_copies.units, dtype == DType::kBFloat16 ? 1 : 0);
    EXPECT_TRUE(report.placements[0].groups[0].host_updates_device_parameters());
    options.on_device = false;
    options.gradient_tier = Tier::kDevice;
    EXPECT_FALSE(plan_ledger(units, options).placements[0].groups[0].host_updates_device_parameters());
  }
}

TEST(PlanLedger, TheShareIsThatOfTheConfiguration) {
  using Device = OffloadOptimizerConfig::Device;
  Config config;
  config.stage = 2;
  config.offload_optimizer.ratio = 0.25;
  const auto options_of = [&](Device device, bool on_device = false) {
    config.offload_optimizer.device = device;
    return plan_options(config, on_device);
  };
  EXPECT_EQ(options_of(Device::kNvme).state_tier, Tier::kFile);
  EXPECT_EQ(options_of(Device::kNvme).state_share, 0.25);
  EXPECT_EQ(options_of(Device::kCpu).state_tier, Tier::kDevice);
  for (const Device device : {Device::kCpu, Device::kNvme}) {
    EXPECT_EQ(options_of(device, /*on_device=*/true).state_share, 0.25);
    EXPECT_EQ(options_of(device, /*on_device=*/true).gradient_tier, Tier::kDevice);  // with the states that stay
  }
  config.offload_optimizer.ratio = 0;  // as without offload
  for (const Device device : {Device::kCpu, Device::kNvme}) {
    for (const bool on_device : {false, true}) {
      EXPECT_EQ(options_of(device, on_device).state_tier, Tier::kDevice);
      EXPECT_EQ(options_of(device, on_device).gradient_tier, Tier::kDevice);
    }
  }
  PlanOptions wrong = at(2, 3);
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    wrong.state_share = share;
    EXPECT_THROW(check_plan_options(wrong), ValueError) << share;
  }
}

TEST(PlanLedger, WhereTheDeviceIsTheCpuTheHostIsTheDevice) {
  Config config;
  config.stage = 2;
  config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  const PlanOptions cpu = plan_options(config), gpu = plan_options(config, /*on_device=*/true);
  EXPECT_EQ(cpu.state_tier, Tier::kDevice);
  EXPECT_EQ(cpu.gradient_tier, Tier::kDevice);
  EXPECT_EQ(gpu.state_tier, Tier::kHost);
  EXPECT_EQ(gpu.gradient_tier, Tier::kHost);
  config.offload_optimizer.device = OffloadOptimizerConfig::Device::kNvme;
  EXPECT_EQ(plan_options(config).state_tier, Tier::kFile);
  EXPECT_EQ(plan_options(config).gradient_tier, Tier::kDevice);
  EXPECT_EQ(plan_options(config, /*on_device=*/true).gradient_tier, Tier::kHost);
}

TEST(PlanCount, TellsWhatLiesOnEachTier) {
  PlanOptions options = at(2, 4);
  options.state_tier = options.gradient_tier = Tier::kHost;
  const PlannedBytes planned = plan_count(1'000'000, options);
  EXPECT_EQ(planned.total(), 2e6);
  EXPECT_EQ(planned.host.gradients, 0.5e6);
  EXPECT_EQ(planned.host.total(), 14e6 / 4);
  options.state_tier = Tier::kFile;
  EXPECT_EQ(plan_count(1'000'000, options).file.total(), 12e6 / 4);
  options.gradient_tier = Tier::kDevice;
  options.state_share = 0.25;
  EXPECT_EQ(plan_count(1'000'000, options).file.total(), 3e6 / 4);
  EXPECT_EQ(plan_count(1'000'000, options).moments, 6e6 / 4);
  EXPECT_EQ(plan_count(1'000'000, options).total(), 2e6 + 2e6 / 4 + 9e6 / 4);
  EXPECT_EQ(plan_kinds_of_units(options)[0].moments, "sharded 2 x fp32, 0.25 of it on file");
}

TEST(PlanLedger, ParametersOnTheHostAreGatheredFromThere) {
  Config config;
  config.stage = 3;
  config.offload_param.device = OffloadParamConfig::Device::kCpu;
  EXPECT_EQ(plan_options(config).parameter_tier, Tier::kDevice);
  EXPECT_EQ(plan_options(config, /*on_device=*/true).parameter_tier, Tier::kHost);
  for (const int ranks : {1, 3}) {
    PlanOptions options = at(3, ranks);
    options.parameter_tier = options.state_tier = options.gradient_tier = Tier::kHost;
    const std::vector<UnitLayout> units{unit("a", kNumel, ranks), unit("b", kNumel, ranks)};
    const PlanReport report = plan_ledger(units, options);
    const int64_t shard = units[0].groups[0].layout.shard_numel();
    EXPECT_EQ(report.bytes.at(Category::kParameters, Tier::kHost), 2 * 2 * shard);
    EXPECT_EQ(held(report, Category::kParameters), 0);
    EXPECT_EQ(held(report, Category::kGatherRing), 2 * 2 * units[0].groups[0].layout.padded_numel());
    EXPECT_EQ(report.bytes.at(Category::kPinned, Tier::kHost), 0);  // nothing goes back from an update
    EXPECT_EQ(plan_count(kNumel, options).parameters, 0);
    EXPECT_EQ(plan_count(kNumel, options).host.parameters, 2. * kNumel / ranks);
  }
}

TEST(PlanLedger, ParametersInFilesPassThroughBuffersOfShards) {
  Config config;
  config.stage = 3;
  config.offload_param.device = OffloadParamConfig::Device::kNvme;
  EXPECT_EQ(plan_options(config).parameter_tier, Tier::kFile);
  EXPECT_EQ(plan_options(config).parameters_in_memory, 1'000'000'000);
  for (const int ranks : {1, 3}) {
    PlanOptions options = at(3, ranks);
    options.parameter_tier = options.state_tier = Tier::kFile;
    options.parameter_buffers = 2;
    const std::vector<UnitLayout> units{unit("a", kNumel, ranks), unit("b", kNumel, ranks), unit("c", kNumel, ranks)};
    const int64_t shard = units[0].groups[0].layout.shard_numel();
    const auto buffers = [&](const PlanOptions& each) {
      PlanOptions without = each;
      without.parameter_tier = Tier::kDevice;
      without.shard_one_rank = true;
      return held(plan_ledger(units, each), Category::kSwap) - held(plan_ledger(units, without), Category::kSwap);
    };
    const PlanReport report = plan_ledger(units, options);
    EXPECT_EQ(report.bytes.at(Category::kParameters, Tier::kFile), 3 * 2 * shard);
    EXPECT_EQ(held(report, Category::kParameters), 0);
    // Shards of less than a chunk: a buffer each, and 8 bytes for each 16 KiB.
    const int64_t bytes = align_up(2 * shard, 4096);
    EXPECT_EQ(buffers(options), 2 * bytes + 3 * 8 * ceil_div(bytes, 16 << 10)) << ranks;
    options.parameter_buffers = 7;  // no more than there is
    EXPECT_EQ(buffers(options), 3 * bytes + 3 * 8 * ceil_div(bytes, 16 << 10)) << ranks;
    options.parameters_in_memory = shard;
    EXPECT_EQ(held(plan_ledger(units, options), Category::kParameters), 2 * shard);
    EXPECT_EQ(plan_count(kNumel, options).parameters, 2. * std::min(double(shard), double(kNumel) / ranks));
    options.parameters_in_memory = 100;
    EXPECT_EQ(plan_count(kNumel, options).parameters, 200);
    EXPECT_EQ(plan_count(kNumel, options).file.parameters, 2. * kNumel / ranks - 200);
  }
}

// Beside a device, too: what stays in memory, and the buffers, lie on the host.
TEST(PlanLedger, ParametersInFilesBesideADevice) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Config config;
    config.stage = config.world_size = 3;
    config.compute_dtype = dtype;
    config.persistence_threshold = 0;
    config.offload_param.device = config.offload_optimizer.device = OffloadDevice::kNvme;
    config.offload_param.max_in_memory = 4000;
    const PlanOptions options = plan_options(config, /*on_device=*/true);
    std::vector<UnitLayout> units;
    for (const int64_t numel : {kNumel, int64_t{9000}})
      units.push_back(make_unit_layout(concat(numel), {{{concat(numel)}, {numel}, dtype, true}}, /*world_size=*/3));
    const PlanReport report = plan_ledger(units, options);
    const auto shard = [&](size_t unit) { return units[unit].groups[0].layout.shard_numel(); };
    EXPECT_EQ(held(report, Category::kParameters), 0);
    EXPECT_EQ(report.bytes.at(Category::kParameters, Tier::kFile), shard(0) * element_size(dtype));
    EXPECT_EQ(report.bytes.at(Category::kParameters, Tier::kHost), shard(1) * element_size(dtype));
    EXPECT_EQ(report.bytes.at(Category::kMasterWeights, Tier::kFile),
              dtype == DType::kFloat32 ? 0 : (shard(0) + shard(1)) * 4);
    EXPECT_EQ(report.parameter_copies.units, 0);
    EXPECT_EQ(held(report, Category::kSwap), 0);
    EXPECT_GT(report.bytes.at(Category::kSwap, Tier::kHost), 0);
    EXPECT_EQ(plan_count(60'000, options).host.parameters, 4000. * double(element_size(dtype)));
    EXPECT_EQ(plan_count(60'000, options).file.parameters, 16'000. * double(element_size(dtype)));
    EXPECT_EQ(plan_count(60'000, options).parameters, 0);
  }
}

// Without their states: those of 16 bits pass through two buffers of the device, which has their master weights.
TEST(PlanLedger, ParametersLeaveAlone) {
  for (const Tier tier : {Tier::kHost, Tier::kFile}) {
    for (const int ranks : {1, 3}) {
      PlanOptions options = at(3, ranks);
      options.on_device = true;
      options.parameter_tier = tier;
      const int64_t numel = 9 * kCopiedNumel * ranks / 2;
      std::vector<UnitLayout> units{unit("a", numel, ranks), unit("b", kNumel, ranks, DType::kBFloat16, false)};
      const PlanReport report = plan_ledger(units, options);
      const int64_t shard = units[0].groups[0].layout.shard_numel(), frozen = units[1].groups[0].layout.shard_numel();
      EXPECT_EQ(report.bytes.at(Category::kParameters, tier), 2 * (shard + frozen));
      EXPECT_EQ(held(report, Category::kParameters), 0);
      EXPECT_EQ(held(report, Category::kMasterWeights), 4 * shard);
      EXPECT_EQ(held(report, Category::kMoments), 8 * shard);
      EXPECT_EQ(report.shard_copies, (RingClass{2 * kCopiedNumel, 2, 1}));
      const int64_t whole = units[0].groups[0].layout.padded_numel() + units[1].groups[0].layout.padded_numel();
      EXPECT_EQ(held(report, Category::kGatherRing), 2 * whole + 4 * kCopiedNumel);
      EXPECT_EQ(report.bytes.at(Category::kPinned, Tier::kHost), 0);
      EXPECT_EQ(plan_count(kNumel, options).parameters, 0);
      units.erase(units.begin());
      EXPECT_EQ(plan_ledger(units, options).shard_copies, RingClass{});
      const std::vector<UnitLayout> small{unit("a", kNumel, ranks)}, wide{unit("a", kNumel, ranks, DType::kFloat32)};
      const RingClass one = plan_ledger(small, options).shard_copies;
      EXPECT_EQ(one, (RingClass{2 * small[0].groups[0].layout.shard_numel(), 1, 1}));
      const PlanReport stay = plan_ledger(wide, options);
      EXPECT_EQ(stay.shard_copies, RingClass{});
      EXPECT_EQ(held(stay, Category::kParameters), 4 * wide[0].groups[0].layout.shard_numel());
      EXPECT_EQ(held(stay, Category::kMasterWeights), 0);
    }
  }
}

// A save in the background copies what lies in memory alone.
TEST(PlanLedger, NothingInFilesIsCopiedForCheckpoints) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool on_device : {false, true}) {
      PlanOptions options = at(3, 3);
      options.compute_dtype = dtype;
      options.on_device = on_device;
      options.parameter_tier = Tier::kFile;
      const std::vector<UnitLayout> units{unit("a", kNumel, 3, dtype), unit("b", kNumel, 3, dtype, false),
                                          unit("c", 9000, 3, dtype, false)};
      const auto shard = [&](size_t unit) { return units[unit].groups[0].layout.shard_numel(); };
      options.parameters_in_memory = shard(2);
      // fp32 parameters of a rank on the CPU are master weights in the file.
      const bool are_there = dtype == DType::kFloat32 && !on_device;
      EXPECT_EQ(checkpoint_staging_bytes(units, options),
                shard(0) * (are_there ? 8 : 12) + shard(2) * element_size(dtype));
      options.state_tier = Tier::kFile;
      EXPECT_EQ(checkpoint_staging_bytes(units, options), shard(2) * element_size(dtype));
      options.optimizer_slots = 0;
      EXPECT_EQ(checkpoint_staging_bytes(units, options), shard(2) * element_size(dtype));
    }
  }
}

TEST(PlanLedger, BuffersOfParametersAreAsLongAsTheLongestShardOrAsAsked) {
  constexpr int64_t kLong = 5 << 20;  // of bf16: 2.5 chunks
  PlanOptions options = at(3, 1);
  options.parameter_tier = options.state_tier = Tier::kFile;
  const std::vector<UnitLayout> units{unit("a", kLong, 1), unit("b", 4096, 1), unit("c", 4 * kLong, 1)};
  const std::vector<UnitPlacement> table = place(units, options);
  options.parameter_buffers = 3;
  EXPECT_EQ(parameter_chunks(units, table, options), 3 * 10);
  options.parameter_buffer_numel = kLong;
  EXPECT_EQ(parameter_chunks(units, table, options), 3 * 3);
  options.parameter_buffer_numel = 1;
  options.parameter_buffers = 1;
  EXPECT_EQ(parameter_chunks(units, table, options), 1);
  options.parameter_buffer_numel = 4 * kLong;
  options.parameter_buffers = 1 << 30;
  EXPECT_GT(parameter_chunks(units, table, options), 1 << 30);
}

TEST(PlanLedger, OneRankShardsNothingAndHasNoRings) {
  const std::vector<UnitLayout> units{unit("a", kNumel, 1)};
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    PlanOptions options = at(stage, 1);
    PlanReport report = plan_ledger(units, options);
    EXPECT_EQ(held(report, Category::kParameters), 2 * kNumel);
    EXPECT_EQ(report.bytes.total(), 16 * kNumel);
    options.grad_accumulation_steps = 2;
    EXPECT_EQ(held(plan_ledger(units, options), Category::kGradients), (2 + 4) * kNumel);
  }
}

TEST(PlanLedger, Fp32ParametersAreTheirOwnMaster) {
  for (int stage = 0; stage <= 3; ++stage) {
    const std::vector<UnitLayout> units{unit("a", kNumel, 3, DType::kFloat32)};
    EXPECT_EQ(held(plan_ledger(units, at(stage, 3)), Category::kMasterWeights), 0);
  }
}

TEST(PlanLedger, FrozenParametersHaveNothingButThemselves) {
  const std::vector<UnitLayout> units{unit("a", kNumel, 3, DType::kBFloat16, /*requires_grad=*/false)};
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const PlanReport report = plan_ledger(units, at(stage, 3));
    EXPECT_EQ(held(report, Category::kParameters), stage == 3 ? 2 * kShard : 2 * kPadded);
    EXPECT_EQ(held(report, Category::kGatherRing), stage == 3 ? 2 * kPadded : 0);
    EXPECT_EQ(report.bytes.total(), held(report, Category::kParameters) + held(report, Category::kGatherRing));
  }
}

// Later micro-batches overwrite what is on the wire, so the sum has memory of its own, whatever its dtype.
TEST(PlanLedger, AccumulatedGradientsAreBesideTheWire) {
  const std::vector<UnitLayout> units{unit("a", kNumel, 3)};
  const auto gradients = [&](const PlanOptions& options) {
    return held(plan_ledger(units, options), Category::kGradients);
  };
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const int64_t on_wire = stage <= 1 ? kPadded : 0, reduced = stage == 0 ? kPadded : kShard;
    PlanOptions options = at(stage, 3);
    options.grad_accumulation_steps = 2;
    EXPECT_EQ(gradients(options), 2 * on_wire + 4 * reduced);
    options.wire_dtype = DType::kFloat32;
    EXPECT_EQ(gradients(options), 4 * on_wire + 4 * reduced);
    options.wire_dtype.reset();
    options.grad_dtype = DType::kBFloat16;
    EXPECT_EQ(gradients(options), 2 * on_wire + 2 * reduced);
  }
}

TEST(PlanLedger, ReducedGradientsShareTheWireBufferWhenTheyCan) {
  const std::vector<UnitLayout> units{unit("a", kNumel, 3)};
  PlanOptions options = at(1, 3);
  EXPECT_EQ(held(plan_ledger(units, options), Category::kGradients), 2 * kPadded);
  options.grad_dtype = DType::kFloat32;
  EXPECT_EQ(held(plan_ledger(units, options), Category::kGradients), 2 * kPadded + 4 * kShard);
}

TEST(PlanLedger, SmallUnitsHaveMoreSlots) {
  const int64_t small = 3 * kBlockNumel, middle = 750 * kBlockNumel;  // 8 MiB hold 5 of the latter in 16 bits
  std::vector<UnitLayout> units;
  for (int i = 0; i < 10; ++i) units.push_back(unit("small" + std::to_string(i), small, 3));
  for (int i = 0; i < 7; ++i) units.push_back(unit("middle" + std::to_string(i), middle, 3));
  PlanOptions options = at(3, 3);
  const std::vector<RingClass> expected{{2 * small, 8, 10}, {2 * middle, 5, 7}};
  EXPECT_EQ(plan_ledger(units, options).gather_ring, expected);
  EXPECT_EQ(plan_ledger(units, options).reduce_ring, expected);
  EXPECT_EQ(prefetch_depth(2 * small, options), 6);
  EXPECT_EQ(prefetch_depth(2 * middle, options), 3);
  options.prefetch = false;
  EXPECT_EQ(plan_ledger(units, options).gather_ring, (std::vector<RingClass>{{2 * small, 2, 10}, {2 * middle, 2, 7}}));
  EXPECT_EQ(prefetch_depth(2 * small, options), 0);
}

TEST(PlanLedger, RingsHaveSizeClasses) {
  const int64_t small = 3 * kBlockNumel, large = 3000 * kBlockNumel;
  std::vector<UnitLayout> units{unit("embeddings", small, 3)};
  for (const char* name : {"0", "1", "2", "3", "4"}) units.push_back(unit(name, large, 3));
  units.push_back(unit("empty", 0, 3));
  PlanOptions options = at(3, 3);
  PlanReport report = plan_ledger(units, options);
  EXPECT_EQ(report.gather_ring, (std::vector<RingClass>{{2 * small, 1, 1}, {2 * large, 3, 5}}));
  EXPECT_EQ(report.reduce_ring, (std::vector<RingClass>{{2 * small, 1, 1}, {2 * large, 2, 5}}));
  options.prefetch = false;
  report = plan_ledger(units, options);
  EXPECT_EQ(report.gather_ring, (std::vector<RingClass>{{2 * small, 1, 1}, {2 * large, 2, 5}}));
  EXPECT_EQ(held(report, Category::kGatherRing), 2 * small + 4 * large);
}

TEST(PlanLedger, PersistentUnitsHaveTheirOwnFullBuffers) {
  const int64_t small = 3 * kBlockNumel;
  const std::vector<UnitLayout> units{unit("0", small, 3), unit("1", small, 3), unit("2", kNumel, 3)};
  PlanOptions options = at(3, 3);
  options.persistence_threshold = small;
  const PlanReport report = plan_ledger(units, options);
  EXPECT_EQ(report.gather_ring, (std::vector<RingClass>{{2 * kPadded, 1, 1}}));
  EXPECT_EQ(report.persistent_bytes, 2 * 2 * small);
  EXPECT_EQ(held(report, Category::kGatherRing), 2 * kPadded + 2 * 2 * small);
  options.stage = 2;
  EXPECT_EQ(held(plan_ledger(units, options), Category::kGatherRing), 0);
}

TEST(PlanLedger, ExchangeScratchIsOfTheLargestUnit) {
  const std::vector<UnitLayout> units{unit("0", kNumel, 3), unit("1", kBlockNumel, 3)};
  PlanOptions options = at(1, 3);
  EXPECT_EQ(exchange_scratch(units, plan_ledger(units, options).placements, options).bytes(), 0);
  options.exchange_needs_scratch = true;
  EXPECT_EQ(held(plan_ledger(units, options), Category::kReduceRing), 2 * 2 * kPadded);
  options.overlap = false;
  EXPECT_EQ(held(plan_ledger(units, options), Category::kReduceRing), 2 * kPadded);
  options.world_size = 1;
  const std::vector<UnitLayout> alone{unit("0", kNumel, 1)};
  EXPECT_EQ(exchange_scratch(alone, plan_ledger(alone, options).placements, options).bytes(), 0);
}

TEST(PlanOptions, FollowTheConfig) {
  Config config;
  config.world_size = 4;
  config.stage = 2;
  config.compute_dtype = DType::kFloat16;
  config.communication_dtype = DType::kFloat32;
  config.grad_accumulation_steps = 3;
  config.prefetch_numel = 0;
  config.overlap_comm = false;
  config.persistence_threshold = 7;
  config.optimizer = OptimizerConfig{};
  config.optimizer->type = OptimizerConfig::Type::kSgd;
  const PlanOptions options = plan_options(config);
  EXPECT_EQ(options.world_size, 4);
  EXPECT_EQ(options.stage, 2);
  EXPECT_EQ(options.compute_dtype, DType::kFloat16);
  EXPECT_EQ(options.wire_dtype, DType::kFloat32);
  EXPECT_EQ(options.grad_accumulation_steps, 3);
  EXPECT_FALSE(options.prefetch);
  EXPECT_FALSE(options.overlap);
  EXPECT_EQ(options.persistence_threshold, 7);
  EXPECT_EQ(options.optimizer_slots, 0);
  config.optimizer->momentum = 0.9;
  EXPECT_EQ(plan_options(config).optimizer_slots, 1);
  config.optimizer.reset();
  EXPECT_EQ(plan_options(config).optimizer_slots, 2);
}

TEST(PlanLedger, CountsBytesOnTheDevice) {
  const std::vector<UnitLayout> units{unit("a", kNumel, 3)};
  const PlanReport report = plan_ledger(units, at(3, 3));
  EXPECT_GT(report.bytes.total(Tier::kDevice), 0);
  EXPECT_EQ(report.bytes.total(), report.bytes.total(Tier::kDevice));
}

TEST(PlanLedger, RefusesLayoutsOfAnotherWorldAndImpossibleOptions) {
  const std::vector<UnitLayout> units{unit("a", kNumel, 3)};
  EXPECT_THROW(plan_ledger(units, at(3, 4)), ValueError);
  EXPECT_THROW(plan_ledger(units, at(4, 3)), ValueError);
  EXPECT_THROW(plan_ledger({}, at(0, 0)), ValueError);
}

int64_t states_of(const PlanReport& report) {
  return held(report, Category::kParameters) + held(report, Category::kGradients) +
         held(report, Category::kMasterWeights) + held(report, Category::kMoments);
}

struct RandomPlan {
  std::vector<UnitLayout> units;
  PlanOptions options;
  int64_t numel = 0;
  SeededRandom random;

  explicit RandomPlan(uint64_t seed) : random(seed) {
    const auto between = [&](int low, int high) { return random.between(low, high); };
    options.world_size = between(2, 17);
    options.compute_dtype = between(0, 1) ? DType::kBFloat16 : DType::kFloat32;
    options.optimizer_slots = between(0, 2);
    options.grad_accumulation_steps = between(1, 2);
    options.prefetch = between(0, 1);
    options.persistence_threshold = between(0, 1) * 5000;
    for (int i = between(1, 8); i > 0; --i) {
      std::vector<ParamSpec> params;
      for (int p = between(1, 4); p > 0; --p) {
        params.push_back({{std::to_string(p)}, {between(1, 60), between(1, 600)}, options.compute_dtype, true});
        numel += params.back().numel();
      }
      units.push_back(make_unit_layout(std::to_string(i), std::move(params), options.world_size));
    }
  }
};

TEST(PlanLedgerProperties, ModelStatesDoNotGrowWithTheStage) {
  for (const uint64_t seed : seeds(300)) {
    RandomPlan plan(seed);
    int64_t previous = INT64_MAX;
    for (plan.options.stage = 0; plan.options.stage <= 3; ++plan.options.stage) {
      const int64_t states = states_of(plan_ledger(plan.units, plan.options));
      EXPECT_LE(states, previous) << "stage " << plan.options.stage;
      previous = states;
    }
  }
}

TEST(PlanLedgerProperties, AllRanksTogetherHoldEveryState) {
  for (const uint64_t seed : seeds(300)) {
    RandomPlan plan(seed);
    const PlanOptions& options = plan.options;
    const bool fp32 = options.compute_dtype == DType::kFloat32;
    // Parameters, reduced gradients, master weights and moments.
    const int64_t states = (fp32 ? 4 : 2) + (fp32 || options.grad_accumulation_steps > 1 ? 4 : 2) + (fp32 ? 0 : 4) +
                           4 * options.optimizer_slots;
    for (plan.options.stage = 0; plan.options.stage <= 3; ++plan.options.stage) {
      EXPECT_GE(options.world_size * states_of(plan_ledger(plan.units, options)), states * plan.numel);
    }
  }
}

// A unit's padding is less than one block per rank, so a rank's shard is less than one block more than its part.
TEST(PlanLedgerProperties, ExceedsTheFormulaByPaddingAlone) {
  for (const uint64_t seed : seeds(300)) {
    RandomPlan plan(seed);
    for (plan.options.stage = 0; plan.options.stage <= 3; ++plan.options.stage) {
      const double exact = double(states_of(plan_ledger(plan.units, plan.options)));
      const double ideal = plan_count(plan.numel, plan.options).model_states();
      EXPECT_GE(exact, ideal);
      const double padding = double(plan.units.size()) * double(kBlockNumel);
      const Placement parameters = shards_parameters(plan.options) ? Placement::kSharded : Placement::kReplicated;
      const GroupPlacement place = place_group(plan.options.compute_dtype, true, parameters, plan.options);
      double bound = 0;
      for (const Stored& held :
           {place.parameters, place.packed_gradients, place.reduced_gradients, place.master_weights, place.moments}) {
        const int copies = held.extent == Extent::kWhole ? plan.options.world_size : 1;
        bound += padding * double(held.element_bytes()) * copies;
      }
      EXPECT_LE(exact - ideal, bound);
    }
  }
}

}  // namespace
}  // namespace zeroshard

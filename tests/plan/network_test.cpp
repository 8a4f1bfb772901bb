#include "zeroshard/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "zeroshard/error.h"
#include "zeroshard/step_time.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kUnitNumel = 3 << 20;  // of a unit
constexpr int kNumUnits = 4;

// Four units, which need no padding on the numbers of ranks here. If they are tied, the first one's weight is the
// head's, too.
ModelShapes four_units(bool are_tied = false) {
  ModelShapes model;
  model.hidden_size = 1024;
  model.sizes.layers = kNumUnits;
  for (int unit = 0; unit < kNumUnits; ++unit) {
    std::vector<std::string> names{"layers." + std::to_string(unit) + ".weight"};
    if (are_tied && unit == 0) names.push_back("lm_head.weight");
    model.units.push_back({"layers." + std::to_string(unit), {{names, {kUnitNumel / 1024, 1024}}}});
  }
  return model;
}

PlanOptions options_on(int stage, int hosts, int ranks_per_host, int replicas = 1, DType dtype = DType::kFloat32) {
  PlanOptions options;
  options.stage = stage;
  options.world_size = hosts * ranks_per_host / replicas;
  options.replicas = replicas;
  options.ranks_per_host = ranks_per_host;
  options.compute_dtype = dtype;
  options.persistence_threshold = 0;
  return options;
}

NetworkBytes crossing(const PlanOptions& options, bool are_tied = false) {
  return plan_network(four_units(are_tied), options);
}

constexpr double kModelBytes = 4. * kUnitNumel * kNumUnits;  // of the model in fp32

// What tests/python/launch/test_hosts.py counts on two hosts: 2 and 2.75 times half of the bytes.
TEST(Network, TwoLevelsCrossOnceForEachHost) {
  for (const int hosts : {2, 3, 4}) {
    const double share = double(hosts - 1) / hosts;
    for (const int stage : {1, 2}) {
      const NetworkBytes bytes = crossing(options_on(stage, hosts, 2));
      EXPECT_DOUBLE_EQ(bytes.refresh, share * kModelBytes);
      EXPECT_DOUBLE_EQ(bytes.sums, share * kModelBytes);
      EXPECT_DOUBLE_EQ(bytes.total(), 2 * share * kModelBytes);
    }
    const NetworkBytes bytes = crossing(options_on(3, hosts, 2));
    EXPECT_DOUBLE_EQ(bytes.forward, share * kModelBytes);
    EXPECT_DOUBLE_EQ(bytes.backward, share * kModelBytes * 3 / 4);  // the last unit stays gathered
    EXPECT_DOUBLE_EQ(bytes.sums, share * kModelBytes);
    EXPECT_EQ(bytes.refresh, 0);
    const NetworkBytes whole = crossing(options_on(0, hosts, 2));
    EXPECT_DOUBLE_EQ(whole.sums, share * kModelBytes);
    EXPECT_DOUBLE_EQ(whole.whole, share * kModelBytes);
    EXPECT_DOUBLE_EQ(whole.total(), 2 * share * kModelBytes);
  }
}

TEST(Network, GroupsThatShareTheStatesSendSumsOnceAndNewParameters) {
  constexpr double kModelNumel = kModelBytes / 4;
  for (const bool is_coded : {false, true}) {
    PlanOptions options = options_on(3, /*hosts=*/2, 2, /*replicas=*/2, DType::kBFloat16);
    options.parts = 2;
    options.quantized_weights = is_coded;
    options.grad_accumulation_steps = 3;
    const NetworkBytes bytes = crossing(options);
    EXPECT_EQ(bytes.forward + bytes.backward, 0);
    EXPECT_DOUBLE_EQ(bytes.sums, 3 * kModelBytes / 2);  // in fp32, of each micro-batch
    EXPECT_DOUBLE_EQ(bytes.refresh, kModelNumel * (is_coded ? 1 + 4. / 256 : 2) / 2);
    EXPECT_DOUBLE_EQ(plan_network(kModelNumel, options).refresh, bytes.refresh);
    options.parts = 1;
    EXPECT_DOUBLE_EQ(crossing(options).sums, 2 * bytes.sums);
    EXPECT_EQ(crossing(options).refresh, 0);
  }
}

TEST(Network, AFlatGatherIsARingAndAFlatSumSendsThePiecesOfAllRanks) {
  for (const bool on_device : {false, true}) {
    PlanOptions options = options_on(3, 2, 2);
    options.in_two_levels = on_device;  // a device's ranks are flat in any case
    options.on_device = on_device;
    const NetworkBytes bytes = crossing(options);
    EXPECT_DOUBLE_EQ(bytes.forward, kModelBytes * 3 / 4);
    EXPECT_DOUBLE_EQ(bytes.sums, 2 * kModelBytes / 2);
  }
  PlanOptions native = options_on(2, 2, 4);
  native.on_device = native.sums_natively = true;
  EXPECT_DOUBLE_EQ(crossing(native).sums, kModelBytes * 7 / 8);
  // Two levels do not pay with one rank on a host, or with two and 16 bits, and three are no subtree.
  EXPECT_DOUBLE_EQ(crossing(options_on(2, 3, 1)).sums, kModelBytes * 2 / 3);
  EXPECT_DOUBLE_EQ(crossing(options_on(2, 2, 2, 1, DType::kBFloat16)).sums, 2 * kModelBytes / 2 / 2);
  EXPECT_DOUBLE_EQ(crossing(options_on(2, 2, 4, 1, DType::kBFloat16)).sums, kModelBytes / 2);
  EXPECT_DOUBLE_EQ(crossing(options_on(2, 2, 3)).sums, 3 * kModelBytes / 2);
  EXPECT_DOUBLE_EQ(crossing(options_on(2, 2, 3)).refresh, kModelBytes / 2);
}

// The sums go to the replicas and come back, whatever the number of ranks that share a copy, as long as it is that of a
// host or a part of it. Copies over two hosts each halve the shards.
TEST(Network, ReplicasExchangeSumsOfGradientsAlone) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int replicas : {2, 4, 8}) {
      const NetworkBytes bytes = crossing(options_on(stage, 2, 4, replicas));
      EXPECT_DOUBLE_EQ(bytes.sums, kModelBytes) << replicas;
      EXPECT_DOUBLE_EQ(bytes.total(), bytes.sums);
      EXPECT_DOUBLE_EQ(crossing(options_on(stage, 2, 4, replicas, DType::kBFloat16)).sums, kModelBytes);
    }
  }
  const NetworkBytes over_two = crossing(options_on(3, 4, 2, 2));
  EXPECT_DOUBLE_EQ(over_two.forward, kModelBytes / 2);
  EXPECT_DOUBLE_EQ(over_two.sums, kModelBytes / 2 + 2 * kModelBytes / 2 / 2);
}

TEST(Network, SumsIn8BitsAreAQuarterAndTheirScales) {
  PlanOptions options = options_on(3, 2, 2, 2);
  options.quantized_gradients = true;
  EXPECT_DOUBLE_EQ(crossing(options).sums, kModelBytes / 4 * (1 + 4. / 256));
  options = options_on(3, 2, 8, 16);  // codes of the eight ranks of a host are not summed there
  options.quantized_gradients = true;
  EXPECT_DOUBLE_EQ(crossing(options).sums, (8 + 1) * kModelBytes / 4 * (1 + 4. / 256) / 2);
}

TEST(Network, EachMicroBatchGathersAndReduces) {
  for (const int stage : {0, 1, 2, 3}) {
    PlanOptions options = options_on(stage, 2, 2);
    const NetworkBytes once = crossing(options);
    options.grad_accumulation_steps = 8;
    const NetworkBytes bytes = crossing(options);
    EXPECT_DOUBLE_EQ(bytes.forward, 8 * once.forward);
    EXPECT_DOUBLE_EQ(bytes.backward, 8 * once.backward);
    EXPECT_DOUBLE_EQ(bytes.sums, 8 * once.sums);
    EXPECT_DOUBLE_EQ(bytes.refresh, once.refresh);
    EXPECT_DOUBLE_EQ(bytes.whole, once.whole);
  }
}

TEST(Network, UnitsThatStayWholeAreGatheredOnceAStep) {
  PlanOptions options = options_on(3, 2, 2);
  options.grad_accumulation_steps = 8;
  options.persistence_threshold = kUnitNumel;
  EXPECT_DOUBLE_EQ(crossing(options).forward, kModelBytes / 2);
  EXPECT_EQ(crossing(options).backward, 0);
  options.persistence_threshold = 0;
  options.rules = {{"layers.0-3", true}};
  EXPECT_DOUBLE_EQ(crossing(options).refresh, kModelBytes / 2);
  EXPECT_EQ(crossing(options).forward + crossing(options).backward, 0);
}

TEST(Network, AHeadWithTheWeightOfTheEmbeddingGathersItAgain) {
  const NetworkBytes bytes = crossing(options_on(3, 2, 2), /*are_tied=*/true);
  EXPECT_DOUBLE_EQ(bytes.forward, kModelBytes / 2 * 5 / 4);
  EXPECT_DOUBLE_EQ(bytes.backward, kModelBytes / 2);
}

TEST(Network, OneHostAndOneCopyForEachRankCrossNothing) {
  EXPECT_EQ(crossing(options_on(3, 1, 4)).total(), 0);
  PlanOptions unknown = options_on(3, 2, 2);
  unknown.ranks_per_host = 0;
  EXPECT_EQ(crossing(unknown).total(), 0);
}

TEST(Network, CopiesThatLieAcrossHostsUnevenlyAreRefused) {
  const auto error = [](const PlanOptions& options) {
    try {
      crossing(options);
    } catch (const ValueError& thrown) {
      return std::string(thrown.what());
    }
    return std::string();
  };
  EXPECT_THAT(error(options_on(3, 3, 2, 2)), HasSubstr("shared by 3 neighbouring ranks"));
  EXPECT_THAT(error(options_on(3, 3, 2, 2)), HasSubstr("a divisor of 2, or a multiple of it"));
  PlanOptions options = options_on(3, 2, 2);
  options.ranks_per_host = 3;
  EXPECT_THAT(error(options), HasSubstr("4 ranks cannot be dealt to hosts with 3 ranks each"));
}

PlannedStep step_over_hosts(const PlanOptions& options, double flops, std::optional<double> network) {
  const ActivationOptions row{.batch = 1, .sequence_length = 1};
  return plan_step(four_units(), options, row,
                   {.flops = flops, .host = 1e30, .link = {}, .disk = {}, .network = network});
}

TEST(NetworkTime, OverlapsThePassesAndTheUpdateAsTheEngineDoes) {
  const double share = kModelBytes / 2 / 1e6;  // seconds of the parameters
  PlanOptions options = options_on(3, 2, 2);
  const PlannedStep slow = step_over_hosts(options, 1e30, 1e6);
  EXPECT_NEAR(slow.total(), share * 2.75, 1e-6);
  const PlannedStep fast = step_over_hosts(options, 1, 1e6);  // computing takes longer than all that crosses
  EXPECT_DOUBLE_EQ(fast.total(), fast.forward + fast.backward + fast.update);
  options.prefetch = options.overlap = false;
  const PlannedStep alone = step_over_hosts(options, 1, 1e6);
  EXPECT_NEAR(alone.total() - fast.total(), share * 2.75, 1e-6);
  const PlannedStep refreshed = step_over_hosts(options_on(2, 2, 2), 1, 1e6);
  EXPECT_NEAR(refreshed.total(), refreshed.forward + refreshed.backward + share, 1e-6);
  const PlannedStep whole = step_over_hosts(options_on(0, 2, 2), 1, 1e6);
  EXPECT_NEAR(whole.total(), whole.forward + whole.backward + share + whole.update, 1e-6);
}

TEST(NetworkTime, ItsRateMustBeKnownWhereBytesCross) {
  EXPECT_NO_THROW(step_over_hosts(options_on(3, 1, 4), 1, {}));
  EXPECT_THROW(step_over_hosts(options_on(3, 2, 2), 1, {}), ValueError);
}

// Two, and then four of the six ranks of a host would share a copy of the states.
TEST(BestChange, NeverDealsRanksUnevenly) {
  const ActivationOptions row{.batch = 1, .sequence_length = 1};
  const MachineRates rates{.flops = 1e30, .host = 1e6, .link = {}, .disk = {}, .network = 1e30};
  const auto change = best_change(four_units(), options_on(2, 2, 6, 6), row, rates);
  ASSERT_TRUE(change.has_value());
  EXPECT_THAT(change->change, HasSubstr("gradient_accumulation_steps = 2"));
}

TEST(Network, ACountIsPlannedWithoutUnits) {
  const NetworkBytes bytes = plan_network(double(kUnitNumel), options_on(3, 2, 2));
  EXPECT_DOUBLE_EQ(bytes.forward, 2. * kUnitNumel);
  EXPECT_DOUBLE_EQ(bytes.backward, 2. * kUnitNumel);
  EXPECT_DOUBLE_EQ(bytes.sums, 2. * kUnitNumel);
}

}  // namespace
}  // namespace zeroshard

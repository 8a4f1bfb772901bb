#include "engine/engine_plan.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local_comm.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// One rank with a unit of one parameter.
struct PlannedModel {
  PlannedModel() {
    units[0].name = "unit";
    units[0].params.push_back({.names = {"weight"}, .shape = {64, 64}, .dtype = at::kFloat});
    units[0].tensors = [] { return std::vector<std::vector<at::Tensor>>{{at::ones({64, 64})}}; };
  }
  EnginePlan plan() { return {units, options, ranks}; }

  std::vector<UnitDefinition> units{1};
  EngineOptions options;
  std::vector<std::unique_ptr<Comm>> world = make_local_world(1);
  Ranks ranks{*world[0], *world[0], nullptr, {}, at::kCPU};
};

TEST(EnginePlan, PlansEachUnitAndAllocatesNothing) {
  PlannedModel model;
  model.options = completed(std::move(model.options), model.units);
  const EnginePlan plan = model.plan();
  ASSERT_EQ(plan.layouts.size(), 1U);
  EXPECT_EQ(plan.placements.size(), 1U);
  EXPECT_GT(plan.bytes.total(), 64 * 64 * 4);
  EXPECT_EQ(plan.ledger.current().total(), 0);
  EXPECT_TRUE(
      plan.holds_for_some_group([](const GroupPlacement& group) { return group.state_tier() == Tier::kDevice; }));
}

TEST(EnginePlan, RefusesAModelThatDoesNotFit) {
  PlannedModel model;
  model.options.config.offload.host_memory = 1000;
  model.options = completed(std::move(model.options), model.units);
  EXPECT_THAT([&] { model.plan(); }, ThrowsMessage<ConfigError>(HasSubstr("the model does not fit")));
}

TEST(EnginePlan, OptionsWithoutParamGroupsTakeTheOptimizerOfTheConfiguration) {
  PlannedModel model;
  model.options.config.optimizer = OptimizerConfig{};
  model.options.config.optimizer->lr = 0.25;
  const EngineOptions options = completed(std::move(model.options), model.units);
  ASSERT_EQ(options.param_groups.size(), 1U);
  EXPECT_EQ(options.param_groups[0].lr, 0.25);
}

}  // namespace
}  // namespace zeroshard

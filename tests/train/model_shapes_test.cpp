#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <map>
#include <set>

#include "support/cases.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/plan.h"

// The planner, which needs no torch, knows the parameters of the models: tests/cases/model_shapes.json.
namespace zeroshard {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

TEST(ModelShapes, AreThoseOfTheModels) {
  for (const auto& each : testing::read_cases("model_shapes")) {
    SCOPED_TRACE(each.at("case").get<std::string>());
    const std::string config = each.at("config").dump();
    Shapes planned, made;
    std::set<const void*> seen;  // tied parameters have two names
    int64_t numel = 0;
    const ModelShapes shapes = parse_model_shapes(config, "config.json");
    for (const UnitShapes& unit : shapes.units)
      for (const ParamShape& param : unit.params)
        for (const std::string& name : param.names) planned[name] = param.shape;
    for (const auto& item : make_causal_lm(config, "config.json")->named_parameters()) {
      made[item.key()] = item.value().sizes().vec();
      if (seen.insert(item.value().unsafeGetTensorImpl()).second) numel += item.value().numel();
    }
    EXPECT_EQ(shapes.numel(), numel);
    // The files have the experts of Mixtral one by one, transformers 5 has them in one parameter.
    if (shapes.model_type == "mixtral") continue;
    EXPECT_EQ(planned, made);
  }
}

}  // namespace
}  // namespace zeroshard

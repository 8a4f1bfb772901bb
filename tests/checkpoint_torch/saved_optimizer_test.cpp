#include "checkpoint_torch/saved_optimizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using Json = nlohmann::json;
using Type = OptimizerConfig::Type;

// A checkpoint with these states of one parameter.
Manifest manifest_of(const std::string& state, const std::vector<std::string>& kinds) {
  Manifest manifest;
  manifest.state = state;
  for (const std::string& kind : kinds) {
    TensorRecord tensor;
    tensor.name = "w";
    tensor.kind = kind;
    manifest.tensors.push_back(tensor);
  }
  return manifest;
}

bool is_taken(const Manifest& manifest, const SavedOptimizer& mine) {
  try {
    check_optimizer(manifest, mine);
    return true;
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("load_optimizer_states=False"), std::string::npos) << error.what();
    return false;
  }
}

TEST(SavedOptimizer, IsTakenByItselfAlone) {
  const std::vector<SavedOptimizer> all = {{Type::kAdam, ""},     {Type::kAdamW, ""},       {Type::kSgd, ""},
                                           {Type::kLion, ""},     {Type::kAdagrad, ""},     {Type::kAdamW, "AdamW"},
                                           {Type::kAdamW, "SGD"}, {Type::kAdamW, "RMSprop"}};
  for (const SavedOptimizer& saved : all) {
    const Manifest manifest = manifest_of(Json{{"core", {{"optimizer", to_json(saved)}}}}.dump(), {});
    for (const SavedOptimizer& mine : all)
      EXPECT_EQ(is_taken(manifest, mine), &saved == &mine) << to_json(saved) << " by " << to_json(mine);
  }
}

TEST(SavedOptimizer, EarlierVersionsSaidItElsewhere) {
  const auto said = [](const char* name, bool outside) {
    return manifest_of(
        Json{{"core", Json::object()}, {"front", {{"optimizer", {{"name", name}, {"outside", outside}}}}}}.dump(), {});
  };
  EXPECT_TRUE(is_taken(said("ADAMW", false), {Type::kAdamW, ""}));
  EXPECT_FALSE(is_taken(said("ADAM", false), {Type::kAdamW, ""}));
  EXPECT_TRUE(is_taken(said("RMSprop", true), {Type::kAdamW, "RMSprop"}));
}

TEST(SavedOptimizer, OfACheckpointThatDoesNotSayTheStatesTell) {
  for (const std::string state :
       {"{}", R"({"core": {}, "front": {"optimizer": null}})", R"({"core": 1, "front": []})"}) {
    const Manifest adam = manifest_of(state, {"exp_avg", "exp_avg_sq"});
    EXPECT_TRUE(is_taken(adam, {Type::kAdam, ""}) && is_taken(adam, {Type::kAdamW, ""}));
    EXPECT_FALSE(is_taken(adam, {Type::kLion, ""}) || is_taken(adam, {Type::kSgd, ""}));
    EXPECT_FALSE(is_taken(adam, {Type::kAdamW, "RMSprop"}));
    EXPECT_TRUE(is_taken(manifest_of(state, {"buffer", "client"}), {Type::kLion, ""}));
  }
}

}  // namespace
}  // namespace zeroshard

#include "zeroshard/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "train/network_fields.h"
#include "train/training_support.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::AllOf;
using testing::config_of;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Material;
using testing::Outcome;
using testing::read_file;
using testing::run;
using testing::TemporaryDirectory;
using testing::Told;

TEST(Training, StagesAndRecomputationGiveTheSameWeights) {
  const Material material;
  for (const int world_size : {1, 3}) {
    std::string expected;
    for (const int stage : {0, 1, 2, 3}) {
      for (const char* more :
           {"", R"(, "activation_checkpointing": "full")", R"(, "activation_checkpointing": {"every": 2})"}) {
        const TemporaryDirectory output;
        ASSERT_THAT(run(material, output.path(), {world_size, stage, 2, more}).errors, Each(""));
        const std::string weights = read_file(output.path() + "/model.safetensors");
        ASSERT_GT(weights.size(), 1000u);
        if (expected.empty()) expected = weights;
        EXPECT_TRUE(weights == expected) << "stage " << stage << more << " with " << world_size << " ranks";
      }
    }
  }
}

// However the rows of a step are dealt to ranks and micro-batches, though these have different numbers of targets.
TEST(Training, TheLossIsTheMeanOverTheTargetsOfAllRanks) {
  const Material material;
  std::vector<double> expected;
  for (const auto& [world_size, accumulation] : {std::pair(1, 1), {1, 4}, {2, 2}, {3, 1}, {4, 3}}) {
    const TemporaryDirectory output;
    const Outcome outcome = run(material, output.path(), {world_size, 2, accumulation, "", 6});
    ASSERT_THAT(outcome.errors, Each(""));
    for (const Told& told : outcome.told) {
      EXPECT_EQ(told.losses, outcome.told[0].losses);
      EXPECT_EQ(told.evaluations, outcome.told[0].evaluations);
    }
    const std::vector<double>& losses = outcome.told[0].losses;
    ASSERT_EQ(losses.size(), 6u);
    if (expected.empty()) expected = losses;
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 2e-5) << world_size << " ranks, accumulation " << accumulation;
  }
  EXPECT_LT(expected.back(), expected.front());
}

TEST(Training, AnInterruptedRunGoesOnWhereItWas) {
  const Material material;
  const TemporaryDirectory whole_output;
  const Outcome whole = run(material, whole_output.path(), {2, 3, 1, "", 7});
  ASSERT_THAT(whole.errors, Each(""));
  // One of the ranks is told to stop after its third step.
  struct Stopper final : TrainObserver {
    explicit Stopper(std::atomic<bool>& stop_) : stop(stop_) {}
    void stepped(const TrainStep& step) override { stop = stop || step.step == 2; }
    std::atomic<bool>& stop;
  };
  const TemporaryDirectory output;
  const std::string json = config_of(material, output.path(), {2, 3, 1, "", 7});
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = testing::run_threads(2, [&](int rank) {
    ConfigContext context;
    context.world_size = 2;
    const TrainConfig config = parse_train_config(json, context, "config");
    const auto group = [&](const char* name) {
      return make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, 2);
    };
    World world(config.engine.config, at::kCPU, group("gather"), group("reduce"), group("checkpoint"));
    std::atomic<bool> stop = false;
    Stopper stopper(stop);
    TrainObserver quiet;
    const TrainEnd end = train(config, world, rank == 1 ? stopper : quiet, stop);
    if (end != TrainEnd::kInterrupted) throw InternalError("the run was not interrupted");
    world.barrier();
  });
  ASSERT_THAT(errors, Each(""));
  EXPECT_FALSE(std::filesystem::exists(output.path() + "/config.json")) << "no trained model yet";
  const Outcome rest = run(json, 2);
  ASSERT_THAT(rest.errors, Each(""));
  EXPECT_EQ(rest.told[0].first, 3);
  EXPECT_EQ(rest.told[0].losses, std::vector<double>(whole.told[0].losses.begin() + 3, whole.told[0].losses.end()));
  EXPECT_TRUE(read_file(output.path() + "/model.safetensors") == read_file(whole_output.path() + "/model.safetensors"));
  // Another order of the data would lose rows.
  std::string other = json;
  other.replace(other.find("\"seed\": 3"), 9, "\"seed\": 4");
  other.replace(other.find("\"steps\": 7"), 10, "\"steps\": 9");
  EXPECT_THAT(run(other, 2).errors, Each(HasSubstr("was made with train.seed 3, this run has 4")));
  other = json;
  other.replace(other.find("AdamW"), 5, "Lion");
  other.replace(other.find("\"steps\": 7"), 10, "\"steps\": 9");
  EXPECT_THAT(run(other, 2).errors, Each(AllOf(HasSubstr("with the optimizer AdamW, this engine has Lion"),
                                               HasSubstr("Name another folder in train.output"))));
}

// The parameters have the same shapes, and would mean something else.
TEST(Training, AnotherNetworkIsRefusedByACheckpoint) {
  const Material material;
  const TemporaryDirectory output;
  const std::string json = config_of(material, output.path(), {2, 3, 1, "", 2});
  ASSERT_THAT(run(json, 2).errors, Each(""));
  const std::string path = material.root.path() + "/config.json", config = read_file(path);
  const auto errors_with = [&](const std::string& fields) {
    std::ofstream(path, std::ios::trunc) << config.substr(0, config.rfind('}')) << ", " << fields << "}";
    return run(json, 2).errors;
  };
  EXPECT_THAT(
      errors_with(R"("rms_norm_eps": 0.5, "rope_theta": 20.0)"),
      Each(AllOf(HasSubstr(path + "' describes: rms_norm_eps was null and is 0.5, rope_theta was null and is 20.0"),
                 HasSubstr("Restore that file, or name another train.checkpoints.folder"))));
  EXPECT_THAT(errors_with(R"("hidden_act": "relu")"), Each(HasSubstr("hidden_act was null and is \"relu\"")));
  EXPECT_THAT(errors_with(R"("attention_dropout": 0.1, "transformers_version": "9")"), Each(""));
  // Checkpoints of earlier versions do not say it.
  EXPECT_EQ(changed_fields(nlohmann::json::object(), network_fields(material.root.path())), "");
}

TEST(Training, TheResultIsAModelToGoOnFrom) {
  const Material material;
  const TemporaryDirectory first, second;
  ASSERT_THAT(run(material, first.path(), {1, 0, 1, ""}).errors, Each(""));
  const auto model = load_causal_lm(first.path());
  EXPECT_EQ(model->vocab_size(), 61);
  std::string json = config_of(material, second.path(), {3, 3, 1, R"(, "export_dtype": "BF16")", 1});
  json.replace(json.find(material.root.path()), material.root.path().size(), first.path());
  json.replace(json.find("\"from_scratch\": true"), 20, "\"from_scratch\": false");
  json.replace(json.find("\"lr\": 0.01"), 10, "\"lr\": 0");
  ASSERT_THAT(run(json, 3).errors, Each(""));
  const auto again = load_causal_lm(second.path());
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(again->named_parameters()[item.key()].equal(item.value().to(at::kBFloat16).to(at::kFloat)))
        << item.key();
  EXPECT_THAT(read_file(second.path() + "/config.json"), HasSubstr("bfloat16"));
}

TEST(Training, FrozenParametersStay) {
  const Material material;
  const TemporaryDirectory first, second;
  ASSERT_THAT(run(material, first.path(), {1, 0, 1, "", 1}).errors, Each(""));
  ASSERT_THAT(
      run(material, second.path(), {2, 3, 1, R"(, "freeze": ["model.embed_tokens", "model.layers.1."])", 1}).errors,
      Each(""));
  const auto initial = make_causal_lm_of(material.root.path());
  allocate(*initial);
  initial->initialize(3);
  const auto trained = load_causal_lm(second.path())->named_parameters();
  for (const auto& item : initial->named_parameters()) {
    const bool frozen = item.key().starts_with("model.layers.1.") || item.key() == "model.embed_tokens.weight" ||
                        item.key() == "lm_head.weight";
    EXPECT_EQ(trained[item.key()].equal(item.value()), frozen) << item.key();
  }
}

TEST(Training, EndsEarlyWithoutProgress) {
  const Material material;
  const TemporaryDirectory output;
  std::string json =
      config_of(material, output.path(), {1, 0, 1, R"(, "evaluation": {"every": 1, "patience": 2})", 50});
  json.replace(json.find("\"lr\": 0.01"), 10, "\"lr\": 0");
  const Outcome outcome = run(json, 1);
  ASSERT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.ends[0], TrainEnd::kStoppedEarly);
  EXPECT_EQ(outcome.told[0].losses.size(), 3u);
  const Outcome again = run(json, 1);  // it is over
  ASSERT_THAT(again.errors, Each(""));
  EXPECT_EQ(again.ends[0], TrainEnd::kStoppedEarly);
  EXPECT_EQ(again.told[0].losses.size(), 0u);
}

TEST(Training, WrongConfigurationsAreNamed) {
  const Material material;
  const TemporaryDirectory output;
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string json = config_of(material, output.path(), {1, 0, 1, ""});
    json.replace(json.find(from), from.size(), to);
    const std::vector<std::string> errors = run(json, 1).errors;
    return errors.front();
  };
  EXPECT_THAT(error("\"train\": {", "\"trian\": {"), HasSubstr("no object \"train\""));
  EXPECT_THAT(error("\"seed\": 3", "\"sead\": 3"), HasSubstr("train.sead"));
  EXPECT_THAT(error("\"length\": 16", "\"length\": 16, \"shufle\": false"), HasSubstr("train.data.shufle = false"));
  EXPECT_THAT(error("\"steps\": 4", "\"steps\": 4, \"epochs\": 2"), HasSubstr("exactly one of"));
  EXPECT_THAT(error("\"length\": 16", "\"length\": 64"), HasSubstr("has only 32 positions"));
  EXPECT_THAT(error("\"length\": 16", "\"length\": 16, \"packing\": \"tight\""), HasSubstr("train.data.packing"));
  EXPECT_THAT(error("\"seed\": 3", "\"freeze\": [\"modle\"]"), HasSubstr("'modle'"));
  EXPECT_THAT(error("\"seed\": 3", "\"freeze\": [\"\"]"), HasSubstr("every parameter"));
  EXPECT_THAT(error("data.tokens", "date.tokens"), HasSubstr("date.tokens"));
  EXPECT_THAT(error("\"stage\": 0", "\"stage\": 9"), HasSubstr("zero_optimization.stage"));
  EXPECT_THAT(error(", \"validation_share\": 0.2", ""), "");
  EXPECT_THAT(error(", \"validation_share\": 0.2}", "}, \"evaluation\": {\"every\": 2}"),
              HasSubstr("nothing to evaluate on"));
}

}  // namespace
}  // namespace zeroshard

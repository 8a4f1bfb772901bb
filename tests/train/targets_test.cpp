// Runs that cannot learn, or cannot tell how well they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "train/training_support.h"
#include "zeroshard/data.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::config_of;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Material;
using testing::Outcome;
using testing::run;
using testing::TemporaryDirectory;

// Documents of a given length, all masked or none.
void write_tokens(const std::string& path, int64_t length, bool hidden) {
  TokenFileOptions options;
  options.vocab_size = 61;
  options.masked = hidden;
  TokenFileWriter writer(path, options);
  const std::vector<uint8_t> learn(size_t(length), 0);
  for (int32_t document = 0; document < 40; ++document) {
    const std::vector<int32_t> ids(size_t(length), document);
    hidden ? writer.append(ids, learn) : writer.append(ids);
  }
  writer.finish();
}

std::string with_replaced(std::string json, const std::string& from, const std::string& to) {
  json.replace(json.find(from), from.size(), to);
  return json;
}

// With other training data than the material's, which is held out.
std::string config_with(const Material& material, const TemporaryDirectory& output, const std::string& training,
                        const std::string& packing, const std::string& more = "") {
  return with_replaced(with_replaced(config_of(material, output.path(), {2, 2, 1, more}), material.tokens(), training),
                       "\"validation_share\": 0.2",
                       "\"packing\": \"" + packing + "\", \"validation\": [\"" + material.tokens() + "\"]");
}

std::string dry_run(const std::string& json) {
  return describe_run(parse_train_config(json, {}, "config"));
}

TEST(Targets, DataWithoutAnyAreAnError) {
  const Material material;
  const std::string tokens = material.root.path() + "/other.tokens";
  for (const auto& [length, hidden] : {std::pair(1, false), {1, true}, {20, true}}) {
    write_tokens(tokens, length, hidden);
    for (const char* packing : {"stream", "whole", "separate"}) {
      const TemporaryDirectory output;
      const std::string json = config_with(material, output, tokens, packing);
      const Outcome outcome = run(json, 2);
      EXPECT_THAT(outcome.errors, Each(HasSubstr("of train.data.train has a token to predict"))) << packing;
      EXPECT_FALSE(std::filesystem::exists(output.path() + "/config.json"));
      EXPECT_THROW(dry_run(json), ValueError);
    }
  }
}

// The first rows of a run may have none, and the loss is then of no token at all.
TEST(Targets, StepsWithoutAnyAreTold) {
  const Material material;
  const TemporaryDirectory output;
  const std::string tokens = material.root.path() + "/other.tokens";
  write_tokens(tokens, 1, false);
  // Ordered: a step of 12 documents of one token each, three times, then the material's own.
  const std::string json =
      with_replaced(config_with(material, output, tokens + "\", \"" + material.tokens(), "separate"), "\"length\": 16",
                    "\"length\": 16, \"shuffle\": false");
  struct Targets final : TrainObserver {
    void stepped(const TrainStep& step) override { counts.push_back(step.targets); }
    std::vector<int64_t> counts;
  };
  const TrainConfig config = parse_train_config(json, {}, "config");
  const auto group = [] { return make_gloo_group(c10::make_intrusive<c10d::HashStore>(), 0, 1); };
  World world(config.engine.config, at::kCPU, group(), group(), group());
  Targets told;
  train(config, world, told, false);
  ASSERT_EQ(told.counts.size(), 4u);
  EXPECT_EQ(std::vector(told.counts.begin(), told.counts.begin() + 3), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_GT(told.counts[3], 0);
}

TEST(Targets, AnEvaluationWithoutAnyTellsNoLoss) {
  const Material material;
  const TemporaryDirectory output;
  const std::string held_out = material.root.path() + "/other.tokens";
  write_tokens(held_out, 1, false);
  const auto config = [&](const std::string& evaluation) {
    return with_replaced(config_of(material, output.path(), {2, 0, 1, ", \"evaluation\": " + evaluation}),
                         "\"validation_share\": 0.2", "\"validation\": [\"" + held_out + "\"]");
  };
  const std::string message = "of an evaluation (train.data.validation, .validation_share, train.evaluation.rows)";
  const std::string depends = config(R"({"every": 1, "patience": 1})");
  EXPECT_THAT(run(depends, 2).errors, Each(HasSubstr(message)));
  EXPECT_THROW(dry_run(depends), ValueError);
  const std::string alone = config(R"({"every": 1})");
  EXPECT_THAT(dry_run(alone), HasSubstr("warning     none of the 3 rows " + message));
  const Outcome outcome = run(alone, 2);
  ASSERT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.told[0].losses.size(), 4u);
  EXPECT_TRUE(outcome.told[0].evaluations.empty());
}

// Rows behind those that are looked at have targets.
TEST(Targets, TheRowsOfAnEvaluationCount) {
  const Material material;
  const TemporaryDirectory output;
  const std::string first = material.root.path() + "/other.tokens";
  write_tokens(first, 1, false);
  const auto errors = [&](int rows) {
    return run(with_replaced(
                   config_of(material, output.path(),
                             {1, 0, 1,
                              R"(, "evaluation": {"every": 1, "patience": 9, "rows": )" + std::to_string(rows) + "}"}),
                   "\"validation_share\": 0.2",
                   R"("packing": "separate", "validation": [")" + first + "\", \"" + material.tokens() + "\"]"),
               1)
        .errors;
  };
  EXPECT_THAT(errors(40), Each(HasSubstr("none of the 40 rows of an evaluation")));
  EXPECT_THAT(errors(60), Each(""));
}

TEST(Targets, PatienceNeedsEvaluations) {
  const Material material;
  const TemporaryDirectory output;
  const std::string json = config_of(material, output.path(), {1, 0, 1, R"(, "evaluation": {"patience": 2})"});
  EXPECT_THAT(run(json, 1).errors, Each(HasSubstr("train.evaluation.patience is 2, but there are no evaluations")));
}

TEST(Steps, ARunInWhichNoneWasAppliedIsAnError) {
  const Material material;
  const std::string path = material.root.path() + "/config.json";
  const std::string model = testing::read_file(path);
  std::ofstream(path) << with_replaced(model, "\"initializer_range\": 0.05", "\"initializer_range\": 1e30");
  for (const char* precision : {"", R"("bf16": {"enabled": true}, )", R"("fp16": {"enabled": true}, )"}) {
    for (const int stage : {0, 3}) {
      const TemporaryDirectory output;
      const std::string json = with_replaced(config_of(material, output.path(), {2, stage, 1, ""}),
                                             "\"train_batch_size\"", precision + std::string("\"train_batch_size\""));
      EXPECT_THAT(run(json, 2).errors, Each(HasSubstr("none of the run's 4 steps was applied"))) << precision << stage;
      EXPECT_FALSE(std::filesystem::exists(output.path() + "/config.json"));
      EXPECT_THAT(run(json, 2).errors, Each(HasSubstr("none of the run's 4 steps was applied"))) << "again";
    }
  }
}

TEST(Steps, TooManyAreAnError) {
  const Material material;
  const TemporaryDirectory output;
  const std::string json = config_of(material, output.path(), {1, 0, 1, ""});
  for (const auto& [length, message] : {std::pair("\"epochs\": 1e300", "train.epochs is 1e+300"),
                                        {"\"epochs\": 1e18", "train.epochs is 1e+18"},
                                        {"\"steps\": 4000000000000000000", "train.steps is 4000000000000000000"}}) {
    const std::string wrong = with_replaced(json, "\"steps\": 4", length);
    EXPECT_THAT(run(wrong, 1).errors, Each(HasSubstr(message)));
    EXPECT_THROW(dry_run(wrong), ValueError);
  }
}

// A run that goes on trains the rows that are left, and none twice, though its batches are of another size.
TEST(Steps, AnotherBatchSizeLeavesTheEpochsAsTheyAre) {
  const Material material;
  DatasetOptions options;
  options.length = 16;
  options.validation_share = 0.2;
  options.seed = 3;
  const int64_t rows = 3 * Dataset({material.tokens()}, options).rows_in_epoch(0);
  ASSERT_GT(rows, 6 * 12);
  const auto steps_of = [](int64_t left, int64_t batch) { return (left + batch - 1) / batch; };
  for (const int64_t batch : {6, 24, 1000}) {
    SCOPED_TRACE(batch);
    const TemporaryDirectory output;
    const std::string json =
        with_replaced(config_of(material, output.path(), {1, 0, 1, ""}), "\"steps\": 4", "\"epochs\": 3");
    std::atomic<bool> stop = false;
    const Outcome first = run(json, 1, stop, [&](int64_t step) { stop = step == 3; });
    ASSERT_THAT(first.errors, Each(""));
    EXPECT_EQ(first.told[0].total, steps_of(rows, 12));
    const std::string other = with_replaced(json, "\"train_batch_size\": 12", concat("\"train_batch_size\": ", batch));
    const Outcome rest = run(other, 1);
    ASSERT_THAT(rest.errors, Each(""));
    EXPECT_EQ(rest.told[0].first, 4);
    EXPECT_EQ(rest.told[0].total, 4 + steps_of(rows - 4 * 12, batch));
    EXPECT_EQ(int64_t(rest.told[0].losses.size()), steps_of(rows - 4 * 12, batch));
    const Outcome done = run(json, 1);  // the rows are trained, whatever the size is now
    ASSERT_THAT(done.errors, Each(""));
    EXPECT_EQ(done.told[0].total, rest.told[0].total);
    EXPECT_THAT(done.told[0].losses, IsEmpty());
  }
}

TEST(Paths, MustNameSomething) {
  const Material material;
  const TemporaryDirectory output;
  const auto error = [&](const std::string& from, const std::string& to) {
    return run(with_replaced(config_of(material, output.path(), {1, 0, 1, ""}), from, to), 1).errors.front();
  };
  const auto quoted = [](const std::string& text) { return "\"" + text + "\""; };
  EXPECT_THAT(error(quoted(output.path()), "\"\""), HasSubstr("train.output = \"\": must not be empty"));
  EXPECT_THAT(error(quoted(material.root.path()), "\"\""), HasSubstr("train.model = \"\": must not be empty"));
  EXPECT_THAT(error(quoted(material.tokens()), "\"\""), HasSubstr("train.data.train = [\"\"]: must not be empty"));
  EXPECT_THAT(error("\"seed\": 3", R"("checkpoints": {"folder": ""})"), HasSubstr("train.checkpoints.folder = \"\""));
  EXPECT_THAT(error("\"seed\": 3", R"("lora": {"adapter": ""})"), HasSubstr("train.lora.adapter = \"\""));
  EXPECT_THAT(error(quoted(output.path()), "\"a\\u0000b\""), HasSubstr("must not contain a zero byte"));
}

}  // namespace
}  // namespace zeroshard

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/training_support.h"
#include "zeroshard/rank_observer.h"

// Evaluations that fail, are ended by a signal, or take long.
namespace zeroshard {
namespace {

using testing::config_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Material;
using testing::Outcome;
using testing::read_file;
using testing::run;
using testing::run_prepared;
using ::testing::StartsWith;
using testing::TemporaryDirectory;
using testing::Told;

// Evaluations of 8 rows, each in a pass of its own, and then of 6 tokens.
constexpr const char* kEvaluations =
    R"(, "evaluation": {"every": 2, "rows": 8}, "samples": {"prompts": ["abc"], "tokens": 6})";
constexpr int kRows = 8, kTokens = 6;

// The tokenizer has the tokens "a", "b", "c", and `more`; and `added`.
struct MaterialWithTokenizer : Material {
  MaterialWithTokenizer() { write_tokenizer(""); }
  void write_tokenizer(const std::string& more, const std::string& added = "") const {
    std::ofstream(root.path() + "/tokenizer.json")
        << R"({"version": "1.0", "added_tokens": [)" << added
        << R"(], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
             "decoder": null, "model": {"type": "BPE", "vocab": {"a": 1, "b": 2, "c": 3)"
        << more << R"(}, "merges": []}})";
  }
};

// Each rank takes one row at a time.
std::string evaluated_config(const Material& material, const std::string& output, int world_size,
                             const std::string& more = kEvaluations) {
  std::string json =
      config_of(material, output, {world_size, world_size == 1 ? 0 : 3, /*accumulation=*/2 / world_size, more, 4});
  json.replace(json.find("\"train_batch_size\": 12"), 22, "\"train_batch_size\": 2");
  return json;
}

struct Counter final : RankObserver {
  explicit Counter(std::function<void(int64_t step)> heard_) : heard(std::move(heard_)) {}
  void step_finished(int64_t step) noexcept override { heard(step); }
  void engine_ended() noexcept override {}
  void waiting(std::string_view) noexcept override {}
  void done_waiting() noexcept override {}
  void meeting_began(int) noexcept override {}
  void meeting_ended() noexcept override {}
  std::function<void(int64_t step)> heard;
};

// Worlds whose rank `rank` reports to `observer`.
testing::MakeWorld observed_world(int rank, const std::shared_ptr<RankObserver>& observer) {
  return [=](const Config& config, const testing::StorePtr& store, int own) {
    const auto group = [&](const char* name) {
      return make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store), own, config.world_size);
    };
    return std::make_unique<World>(config, at::kCPU, group("gather"), group("reduce"), group("checkpoint"), nullptr,
                                   own == rank ? observer : nullptr);
  };
}

TEST(Evaluations, AnErrorInOneLosesNoStep) {
  const Material material;
  for (const int world_size : {1, 2}) {
    const TemporaryDirectory whole_output;
    constexpr const char* more = R"(, "evaluation": {"every": 2}, "checkpoints": {"every": 2})";
    const std::string whole_json = evaluated_config(material, whole_output.path(), world_size, more);
    const Outcome whole = run(whole_json, world_size);
    ASSERT_THAT(whole.told[0].evaluated_at, ElementsAre(2, 4));
    for (const int64_t failing : {2, 4}) {
      SCOPED_TRACE(::testing::Message() << world_size << " ranks, step " << failing);
      const TemporaryDirectory output;
      const std::string json = evaluated_config(material, output.path(), world_size, more);
      const Outcome failed = run_prepared(json, world_size, false, [&](Told& told) {
        told.before_evaluation_is_kept = [&](int64_t step) {
          if (step == failing) throw std::runtime_error("planted");
        };
      });
      ASSERT_THAT(failed.errors, Each("planted"));
      const Outcome rest = run(json, world_size);
      ASSERT_THAT(rest.errors, Each(""));
      EXPECT_EQ(rest.told[0].first, failing);
      EXPECT_EQ(rest.told[0].evaluated_at.front(), failing) << "the missing evaluation is made";
      EXPECT_EQ(rest.told[0].evaluations.back(), whole.told[0].evaluations.back());
      EXPECT_TRUE(read_file(output.path() + "/model.safetensors") ==
                  read_file(whole_output.path() + "/model.safetensors"));
    }
  }
}

TEST(Evaluations, OneOfASavedStepIsMadeOnce) {
  const Material material;
  for (const int world_size : {1, 2}) {
    SCOPED_TRACE(world_size);
    const TemporaryDirectory output;
    const std::string json = evaluated_config(material, output.path(), world_size,
                                              R"(, "evaluation": {"every": 2}, "checkpoints": {"every": 2})");
    const auto fail_at_3 = [](int64_t step) {
      if (step == 3) throw std::runtime_error("planted");
    };
    EXPECT_THAT(run(json, world_size, false, fail_at_3).told[0].evaluated_at, ElementsAre(2));
    const Outcome rest = run(json, world_size);
    ASSERT_THAT(rest.errors, Each(""));
    EXPECT_EQ(rest.told[0].first, 2);
    EXPECT_THAT(rest.told[0].evaluated_at, ElementsAre(4));
    const auto again = [&] {
      const Outcome outcome = run(json, world_size);
      EXPECT_THAT(outcome.errors, Each(""));
      return outcome.told[0].evaluated_at;
    };
    EXPECT_THAT(again(), IsEmpty()) << "the run is finished";
    // What does not belong to the checkpoint does not count.
    const std::string record = output.path() + "/checkpoints/evaluation.json";
    for (const char* damaged : {"", "{}", "[4]", R"({"evaluated": "4"})", R"({"evaluated": 4, "best": 1})"}) {
      std::ofstream(record, std::ios::trunc) << damaged;
      EXPECT_THAT(again(), ElementsAre(4)) << damaged;
      EXPECT_THAT(again(), IsEmpty());
    }
    std::filesystem::remove_all(output.path() + "/checkpoints/global_step4");
    EXPECT_THAT(again(), ElementsAre(2, 4)) << "the record is of a step that is made again";
    std::filesystem::remove_all(output.path() + "/checkpoints/global_step4");
    std::filesystem::remove_all(output.path() + "/checkpoints/global_step2");
    std::filesystem::remove(output.path() + "/config.json");
    EXPECT_THAT(again(), ElementsAre(2, 4));
  }
}

TEST(Evaluations, EachPassAndEachTokenIsProgress) {
  const MaterialWithTokenizer material;
  const TemporaryDirectory output;
  std::map<int64_t, int> heard;  // reports by step
  const auto counter = std::make_shared<Counter>([&](int64_t step) { ++heard[step]; });
  const std::string json = evaluated_config(material, output.path(), 1);
  const Outcome outcome = run(json, 1, false, {}, observed_world(0, counter));
  ASSERT_THAT(outcome.errors, Each(""));
  const int with_evaluation = 1 + kRows + kTokens;
  EXPECT_EQ(heard, (std::map<int64_t, int>{{1, 1}, {2, with_evaluation}, {3, 1}, {4, with_evaluation}}));
  EXPECT_EQ(outcome.told[0].samples.size(), 2u);
}

// In a pass or at a token, the last of all included: that evaluation is either told as a whole, or made later.
TEST(Evaluations, ASignalEndsOneOnAllRanks) {
  const MaterialWithTokenizer material;
  for (const int world_size : {1, 2}) {
    const TemporaryDirectory whole_output;
    const Outcome whole = run(evaluated_config(material, whole_output.path(), world_size), world_size);
    ASSERT_THAT(whole.errors, Each(""));
    const int passes = kRows / world_size;
    for (const int64_t at : {2, 4}) {
      for (const int pass : {3, passes + 2, passes + kTokens}) {
        SCOPED_TRACE(::testing::Message() << world_size << " ranks, step " << at << ", pass " << pass);
        const TemporaryDirectory output;
        const std::string json = evaluated_config(material, output.path(), world_size);
        std::atomic<bool> stop = false;
        int heard = 0;
        const auto signal = std::make_shared<Counter>([&](int64_t step) {
          if (step == at && ++heard == 1 + pass) stop = true;  // one is that of the step itself
        });
        const Outcome ended = run(json, world_size, stop, {}, observed_world(world_size - 1, signal));
        ASSERT_THAT(ended.errors, Each(""));
        ASSERT_GE(heard, 1 + pass);
        const bool is_done = ended.ends[0] == TrainEnd::kDone;
        EXPECT_THAT(ended.ends, Each(is_done ? TrainEnd::kDone : TrainEnd::kInterrupted));
        // Only before the last token do the ranks no longer ask each other.
        const bool is_heard = pass < passes + kTokens;
        EXPECT_EQ(is_done, !is_heard && at == 4);
        EXPECT_EQ(ended.told[0].evaluated_at.size(), (at == 2 ? 0u : 1u) + (is_heard ? 0u : 1u));
        EXPECT_EQ(ended.told[0].samples.size(), ended.told[0].evaluations.size());
        const Outcome rest = run(json, world_size);
        ASSERT_THAT(rest.errors, Each(""));
        std::vector<int64_t> all = ended.told[0].evaluated_at;
        all.insert(all.end(), rest.told[0].evaluated_at.begin(), rest.told[0].evaluated_at.end());
        EXPECT_THAT(all, ElementsAre(2, 4)) << "each is made once";
        EXPECT_TRUE(read_file(output.path() + "/model.safetensors") ==
                    read_file(whole_output.path() + "/model.safetensors"));
      }
    }
  }
}

// A chat has one after each message, and another before the first message where bos and eos are one token.
TEST(Evaluations, AnEndTokenInAPromptDoesNotEndTheSample) {
  const MaterialWithTokenizer material;
  material.write_tokenizer("", R"({"id": 4, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                                   "normalized": false, "special": true})");
  std::ofstream(material.root.path() + "/tokenizer_config.json") << R"({"eos_token": "</s>"})";
  const TemporaryDirectory output;
  constexpr const char* more = R"(, "samples": {"prompts": ["</s>ab</s>ca</s>c", "ab</s>"], "tokens": 6})";
  const Outcome outcome = run(evaluated_config(material, output.path(), 1, more), 1);
  ASSERT_THAT(outcome.errors, Each(""));
  EXPECT_THAT(outcome.told[0].samples, ElementsAre(StartsWith("a b c a c"), StartsWith("a b")));
}

TEST(Evaluations, PromptsAreCheckedBeforeTheFirstStep) {
  const Material bare;
  const MaterialWithTokenizer material;
  const auto error = [](const Material& with, const std::string& prompt) {
    const TemporaryDirectory output;
    const std::string json =
        evaluated_config(with, output.path(), 1, R"(, "samples": {"prompts": [")" + prompt + "\"]}");
    const Outcome outcome = run(json, 1);
    EXPECT_THAT(outcome.told[0].losses, IsEmpty());
    ConfigContext context;
    context.world_size = 1;
    try {
      describe_run(parse_train_config(json, context, "config"));
      ADD_FAILURE() << "a dry run finds nothing";
    } catch (const std::exception& found) {
      EXPECT_EQ(found.what(), outcome.errors[0]);
    }
    return outcome.errors[0];
  };
  EXPECT_THAT(error(material, ""), HasSubstr("train.samples.prompts has a prompt without tokens: ''"));
  EXPECT_THAT(error(bare, "abc"), HasSubstr("train.samples.prompts needs the tokenizer of train.model"));
  material.write_tokenizer(R"(, "z": 61)");
  EXPECT_THAT(error(material, "abz"),
              HasSubstr("the prompt 'abz' has token 61, which is outside the model's vocabulary of 61"));
}

}  // namespace
}  // namespace zeroshard

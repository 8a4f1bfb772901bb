#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "support/release.h"
#include "train/training_support.h"

// Runs of `zeroshard train` that are ended, by signals or by errors, and begun again until they are done.
namespace zeroshard {
namespace {

using testing::config_of;
using ::testing::Each;
using testing::Material;
using testing::Outcome;
using testing::read_file;
using testing::run;
using testing::TemporaryDirectory;
using testing::Told;
using testing::Variant;

// All that runs of one command come to.
struct Story {
  std::map<int64_t, double> evaluations;  // loss by step
  std::map<int64_t, double> losses;
  size_t told = 0;  // evaluations, with those that were made again
  TrainEnd end = TrainEnd::kInterrupted;
  int64_t steps = 0;
  std::string model;
};

enum class Ending : uint8_t { kSignal, kError };

void add(const Told& told, Story& story) {
  const auto note = [](std::map<int64_t, double>& known, int64_t step, double value) {
    const auto [found, added] = known.emplace(step, value);
    EXPECT_EQ(found->second, value) << "another value of step " << step << " when it was made again";
  };
  for (size_t i = 0; i < told.evaluations.size(); ++i)
    note(story.evaluations, told.evaluated_at[i], told.evaluations[i]);
  for (size_t i = 0; i < told.losses.size(); ++i) note(story.losses, told.first + 1 + int64_t(i), told.losses[i]);
  story.told += told.evaluations.size();
  story.steps = std::max(story.steps, told.first + int64_t(told.losses.size()));
}

// `end_after`: the step after which each run is ended, from the one that it begins with; -1: it is not.
Story story_of(const Material& material, const Variant& variant, Ending ending,
               const std::function<int64_t(int64_t first)>& end_after) {
  const TemporaryDirectory output;
  const std::string json = config_of(material, output.path(), variant);
  Story story;
  for (int runs = 0; story.end == TrainEnd::kInterrupted; ++runs) {
    if (runs == 100) {
      ADD_FAILURE() << "the run does not come to its end";
      return story;
    }
    const int64_t last = end_after(story.steps);
    std::atomic<bool> stop = false;
    const auto after_step = [&](int64_t step) {
      if (step != last) return;
      if (ending == Ending::kError) throw std::runtime_error("planted");
      stop = true;  // an evaluation that is due begins in vain, and else another step is made
    };
    const Outcome outcome = run(json, variant.world_size, stop, after_step);
    const bool failed = outcome.errors[0] == "planted";
    EXPECT_THAT(outcome.errors, Each(failed ? "planted" : ""));
    if (::testing::Test::HasFailure()) return story;
    add(outcome.told[0], story);
    if (!failed) story.end = outcome.ends[0];
  }
  story.model = read_file(output.path() + "/model.safetensors");
  return story;
}

void expect_same(const Story& story, const Story& whole) {
  EXPECT_EQ(story.evaluations, whole.evaluations);
  EXPECT_EQ(story.losses, whole.losses);
  EXPECT_EQ(story.end, whole.end);
  EXPECT_TRUE(story.model == whole.model) << "the model is another one";
}

// Evaluations, saves and the ends of epochs are due at some of its steps, and it ends early.
Variant variant_of(int world_size, int stage) {
  return {world_size, stage, 1, R"(, "evaluation": {"every": 2, "patience": 2}, "checkpoints": {"every": 3})", 40};
}

// Ranks that are threads share one generator of random numbers.
std::string more_of(const Variant& variant) {
  return variant.world_size == 1 ? R"(, "attention_dropout": 0.1)" : "";
}

int64_t never(int64_t) {
  return -1;
}

std::vector<Variant> variants() {
  if (!testing::release()) return {variant_of(1, 0), variant_of(2, 3)};
  std::vector<Variant> all;
  for (const int world_size : {1, 2, 3})
    for (const int stage : {0, 1, 2, 3}) all.push_back(variant_of(world_size, stage));
  return all;
}

TEST(InterruptedTraining, ASignalAtAnyStepChangesNoEvaluation) {
  for (const Variant& variant : variants()) {
    const Material material(more_of(variant));
    SCOPED_TRACE(::testing::Message() << variant.world_size << " ranks, stage " << variant.stage);
    const Story whole = story_of(material, variant, Ending::kSignal, never);
    ASSERT_EQ(whole.end, TrainEnd::kStoppedEarly);
    ASSERT_GE(whole.steps, 6);
    ASSERT_LT(whole.steps, 30);
    for (int64_t step = 0; step <= whole.steps; ++step) {
      SCOPED_TRACE(step);
      bool again = false;
      const Story story =
          story_of(material, variant, Ending::kSignal, [&](int64_t) { return std::exchange(again, true) ? -1 : step; });
      expect_same(story, whole);
      EXPECT_EQ(story.told, whole.told) << "evaluations are made once";
    }
    SCOPED_TRACE("after each step");
    const Story story = story_of(material, variant, Ending::kSignal, [](int64_t first) { return first + 1; });
    expect_same(story, whole);
    EXPECT_EQ(story.told, whole.told);
  }
}

TEST(InterruptedTraining, AnErrorAtAnyStepChangesNoEvaluation) {
  for (const Variant& variant : variants()) {
    const Material material(more_of(variant));
    SCOPED_TRACE(::testing::Message() << variant.world_size << " ranks, stage " << variant.stage);
    const Story whole = story_of(material, variant, Ending::kError, never);
    for (int64_t step = 1; step <= whole.steps; ++step) {
      SCOPED_TRACE(step);
      bool again = false;  // from the newest checkpoint
      const Story story =
          story_of(material, variant, Ending::kError, [&](int64_t) { return std::exchange(again, true) ? -1 : step; });
      expect_same(story, whole);
    }
  }
}

}  // namespace
}  // namespace zeroshard

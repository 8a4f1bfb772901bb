#include "engine/step_progress.h"

#include <gmock/gmock.h>

#include "base/check.h"

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config configuration(int64_t accumulation) {
  Config config;
  config.micro_batch_size = 3;
  config.grad_accumulation_steps = accumulation;
  return config;
}

std::vector<int64_t> counts(const StepProgress& progress) {
  const Progress& counts = progress.counts();
  return {counts.global_steps, counts.skipped_steps, counts.micro_steps, counts.global_samples};
}

void pass(StepProgress& progress, bool sync = true) {
  progress.begin_pass(sync);
  progress.add_gradient();
  progress.end_pass();
}

TEST(StepProgress, CountsMicroBatchesAndSteps) {
  StepProgress progress(configuration(2), /*world_size=*/4);
  EXPECT_FALSE(progress.counts().is_boundary());
  pass(progress);
  progress.end_micro_batch();
  EXPECT_THAT(counts(progress), ElementsAre(0, 0, 1, 12));
  EXPECT_TRUE(progress.counts().is_boundary());
  EXPECT_EQ(progress.at_last_step().micro_steps, 0);
  EXPECT_EQ(progress.at_last_step().global_samples, 0);
  pass(progress);
  progress.end_step(/*applied=*/true);
  EXPECT_THAT(counts(progress), ElementsAre(1, 0, 2, 24));
  EXPECT_EQ(progress.at_last_step().global_samples, 24);
  EXPECT_FALSE(progress.is_unapplied());
  progress.end_step(/*applied=*/false);
  EXPECT_THAT(counts(progress), ElementsAre(2, 1, 3, 36));
}

TEST(StepProgress, TheCallerMaySayWhereAStepEnds) {
  StepProgress progress(configuration(2), 1);
  progress.counts().boundary = true;
  EXPECT_TRUE(progress.counts().is_boundary());
  progress.end_micro_batch();
  progress.counts().boundary = false;
  EXPECT_FALSE(progress.counts().is_boundary());
  progress.counts().boundary.reset();
  EXPECT_TRUE(progress.counts().is_boundary()) << "one of two is over";
}

// A front that steps once per accumulation says nothing of micro-batches.
TEST(StepProgress, APassOfItsOwnIsAMicroBatch) {
  StepProgress progress(configuration(3), 1);
  for (int i = 0; i < 3; ++i) {
    pass(progress);
    progress.end_own_pass();
  }
  EXPECT_THAT(counts(progress), ElementsAre(0, 0, 2, 6));
  EXPECT_TRUE(progress.counts().is_boundary());
  progress.end_step(true);
  EXPECT_THAT(counts(progress), ElementsAre(1, 0, 3, 9));
  pass(progress);
  progress.end_own_pass();
  progress.end_micro_batch();  // said
  pass(progress);
  progress.end_own_pass();
  EXPECT_THAT(counts(progress), ElementsAre(1, 0, 4, 12));
}

TEST(StepProgress, WhatIsDiscardedCountsNoMore) {
  StepProgress progress(configuration(4), 1);
  progress.end_step(true);
  for (int i = 0; i < 2; ++i) {
    pass(progress, /*sync=*/false);
    progress.end_micro_batch();
  }
  EXPECT_THAT(counts(progress), ElementsAre(1, 0, 3, 9));
  EXPECT_EQ(progress.micro_batches(), 2);
  progress.counts().global_steps = 7;  // as a script may
  progress.discard();
  EXPECT_THAT(counts(progress), ElementsAre(7, 0, 1, 3));
  EXPECT_FALSE(progress.is_unsynced() || progress.is_unapplied() || progress.has_open_gradients());
  progress.discard();
  EXPECT_THAT(counts(progress), ElementsAre(7, 0, 1, 3));
}

TEST(StepProgress, KnowsWhatStillHasToTravel) {
  StepProgress progress(configuration(1), 1);
  EXPECT_TRUE(progress.syncs());
  progress.begin_pass(/*sync=*/false);
  EXPECT_FALSE(progress.syncs());
  progress.add_gradient();
  EXPECT_TRUE(progress.has_open_gradients());
  EXPECT_FALSE(progress.has_plain_gradients());
  progress.end_pass();
  EXPECT_TRUE(progress.is_unsynced() && progress.is_unapplied() && progress.syncs());
  progress.add_gradient();
  EXPECT_TRUE(progress.has_open_gradients() && progress.has_plain_gradients());
  pass(progress);
  EXPECT_FALSE(progress.is_unsynced());
  EXPECT_TRUE(progress.has_plain_gradients()) << "until the step";
  progress.end_step(true);
  EXPECT_FALSE(progress.has_plain_gradients());
}

TEST(StepProgress, AStepWithoutGradientsSaysNothingOfSkippedOnes) {
  StepProgress progress(configuration(1), 1);
  for (int i = 0; i < 2; ++i) {
    pass(progress);
    progress.end_step(false);
  }
  progress.end_step(true);
  EXPECT_EQ(progress.skipped_in_a_row(), 2);
  pass(progress);
  progress.end_step(true);
  EXPECT_EQ(progress.skipped_in_a_row(), 0);
}

TEST(StepProgress, GoesOnWhereAStepBegins) {
  StepProgress progress(configuration(4), 2);
  progress.end_micro_batch();
  progress.restore({{"global_steps", 5}, {"micro_steps", 99}, {"global_samples", 30}, {"epoch", 1}}, /*step=*/1);
  EXPECT_THAT(counts(progress), ElementsAre(5, 0, 20, 30));
  progress.discard();
  EXPECT_THAT(counts(progress), ElementsAre(5, 0, 20, 30));
  progress.restore({}, /*step=*/3);
  EXPECT_THAT(counts(progress), ElementsAre(3, 0, 12, 0));
}

std::string refusal(StepProgress& progress, const Config& config, int64_t samples) {
  try {
    progress.set_train_batch_size(samples, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(StepProgress, ABatchSizeIsAWholeNumberOfMicroBatches) {
  const Config config = configuration(2);
  StepProgress progress(config, 2);
  for (const int64_t samples : {0, -6, 3, 7})
    EXPECT_THAT(refusal(progress, config, samples), HasSubstr("expected a multiple of")) << samples;
  pass(progress);
  EXPECT_THAT(refusal(progress, config, 18), HasSubstr("within a step"));
  progress.end_step(true);
  EXPECT_EQ(refusal(progress, config, 18), "");
  EXPECT_EQ(progress.counts().batch.train(), 18);
  EXPECT_EQ(progress.counts().micro_steps, 3);
  progress.set_micro_batch_size(5);
  EXPECT_EQ(progress.counts().batch.train(), 30);
  EXPECT_THROW(progress.set_micro_batch_size(0), ValueError);
}

TEST(StepProgress, SixteenBitsAreNotSummedUnasked) {
  Config config = configuration(1);
  config.compute_dtype = DType::kBFloat16;
  StepProgress progress(config, 1);
  EXPECT_THAT(refusal(progress, config, 6), HasSubstr("summed in bf16"));
  config.grad_accum_dtype = DType::kBFloat16;
  EXPECT_EQ(refusal(progress, config, 6), "");
}

}  // namespace
}  // namespace zeroshard

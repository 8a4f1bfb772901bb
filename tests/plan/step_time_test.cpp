#include "zeroshard/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

constexpr double kPeak = 70e12;  // of a V100, as the ZeRO-Infinity paper has it
constexpr int64_t kTimedParams = 1 << 30, kLength = 1024;

// Matrices and nothing else: embeddings of one row, and no attention over keys.
ModelShapes matrices(int64_t params = kTimedParams) {
  ModelShapes model;
  model.model_type = "gpt2";
  model.hidden_size = 1024;
  model.sizes.layers = 1;
  model.units = {{"transformer.wte", {{{"transformer.wte.weight"}, {1, 1}}}},
                 {"transformer.h.0", {{{"transformer.h.0.weight"}, {params / 1024, 1024}}}}};
  return model;
}

PlanOptions timed_options(int stage = 3, bool on_device = true) {
  PlanOptions made;
  made.stage = stage;
  made.on_device = on_device;
  return made;
}

ActivationOptions tokens(int64_t batch, bool checkpointing) {
  return {.batch = batch, .sequence_length = kLength, .checkpointing = checkpointing};
}

// arXiv 2104.07857, section 4: 8 operations per parameter and token with recomputation; parameters and gradients move 8
// bytes a parameter. Here 4 to the device, and gradients the other way meanwhile: half the bandwidth for as long.
TEST(ZeroInfinity, EfficiencyOfParametersAndGradients) {
  PlanOptions at = timed_options();
  at.parameter_tier = at.gradient_tier = at.state_tier = Tier::kHost;
  const PlannedStep step =
      plan_step(matrices(), at, tokens(1, true), {.flops = kPeak, .host = 1e30, .link = 70e9 / 2, .disk = {}});
  const double compute = step.forward + step.backward;
  EXPECT_NEAR(compute, 8. * double(kTimedParams) * kLength / kPeak, 1e-9 * compute);
  EXPECT_NEAR(compute / (compute + step.link), 0.506, 0.0005);
  EXPECT_DOUBLE_EQ(step.passes(), compute);  // they overlap here
}

// States move 32 bytes a parameter there, with a gradient in fp32, and 24 here.
TEST(ZeroInfinity, EfficiencyOfOptimizerStates) {
  PlanOptions at = timed_options(2, /*on_device=*/false);
  at.state_tier = Tier::kFile;
  const PlannedStep step =
      plan_step(matrices(), at, tokens(2, true), {.flops = kPeak, .host = 1e30, .link = {}, .disk = 1.5e12 * 24 / 32});
  EXPECT_NEAR(step.efficiency(), 0.916, 0.0005);
}

TEST(StepTime, TheUpdateReads28BytesOfAParameter) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    PlanOptions at = timed_options(1, /*on_device=*/false);
    at.compute_dtype = dtype;
    const PlannedStep step =
        plan_step(matrices(), at, tokens(1, false), {.flops = 1e30, .host = 28e9, .link = {}, .disk = {}});
    EXPECT_NEAR(step.total(), double(kTimedParams) / 1e9, 1e-6) << name_of(dtype);
  }
}

// 8 bytes less in memory, and of 24 on the disk a third.
TEST(StepTime, MomentsInBf16AreReadAndWrittenFaster) {
  PlanOptions at = timed_options(1, /*on_device=*/false);
  at.moment_dtype = DType::kBFloat16;
  at.state_tier = Tier::kFile;
  const PlannedStep step =
      plan_step(matrices(), at, tokens(1, false), {.flops = 1e30, .host = 20e9, .link = {}, .disk = 16e9});
  EXPECT_NEAR(step.update, double(kTimedParams) / 1e9, 1e-6);
  EXPECT_NEAR(step.disk, double(kTimedParams) / 1e9, 1e-5);
}

// The longer of both counts, not their sum.
TEST(StepTime, LateUpdatesGoOnBesideTheNextPasses) {
  PlanOptions at = timed_options(1, /*on_device=*/true);
  at.state_tier = at.gradient_tier = Tier::kHost;
  for (const double host : {1e9, 1e13}) {
    const MachineRates rates{.flops = 1e13, .host = host, .link = 1e11, .disk = {}};
    at.delayed_update = false;
    const PlannedStep now = plan_step(matrices(), at, tokens(1, false), rates);
    at.delayed_update = true;
    const PlannedStep late = plan_step(matrices(), at, tokens(1, false), rates);
    EXPECT_EQ(late.passes(), now.passes());
    EXPECT_EQ(late.after(), now.after());
    EXPECT_EQ(now.total(), now.passes() + now.after());
    EXPECT_EQ(late.total(), std::max(now.passes(), now.after()));
  }
}

// Gradients that stay cross the link once a step; of a share all counts as much less.
TEST(StepTime, GradientsThatStayAreCopiedOnceAStep) {
  const MachineRates rates{.flops = 1e30, .host = 28e9, .link = 1e9, .disk = {}};
  PlanOptions at = timed_options(2);
  at.grad_accumulation_steps = 8;
  at.state_tier = Tier::kHost;
  const PlannedStep stay = plan_step(matrices(), at, tokens(1, false), rates);
  EXPECT_NEAR(stay.link, 4 * double(kTimedParams) / 1e9, 1e-3 * stay.link);  // a gradient in fp32
  at.state_share = 0.25;
  const PlannedStep part = plan_step(matrices(), at, tokens(1, false), rates);
  EXPECT_NEAR(part.link, stay.link / 4, 1e-6 * stay.link);
  EXPECT_NEAR(part.update, stay.update / 4, 1e-6 * stay.update);
  at.state_share = 1;
  at.gradient_tier = Tier::kHost;
  EXPECT_NEAR(plan_step(matrices(), at, tokens(1, false), rates).link, 34 * double(kTimedParams) / 1e9, 1e-3 * 34e9);
}

// The device sends what it updates, and brings the gradients of the rest; the host writes its part where it lies.
TEST(StepTime, ParametersThatLeaveWithAShareOfTheirStates) {
  const MachineRates rates{.flops = 1e30, .host = 28e9, .link = 1e9, .disk = {}};
  PlanOptions at = timed_options(3);
  at.persistence_threshold = 0;
  at.parameter_tier = at.state_tier = Tier::kHost;
  const auto step = [&](double share, DType dtype = DType::kBFloat16) {
    at.state_share = share;
    at.compute_dtype = dtype;
    return plan_step(matrices(), at, tokens(1, false), rates);
  };
  for (const double share : {0.25, 0.75})
    EXPECT_NEAR(step(share).update, share * step(1).update, 1e-6 * step(1).update);
  // Parameters come twice; more goes to the device than to the host.
  EXPECT_NEAR(step(0.25).link, 4 * double(kTimedParams) / 1e9, 1e-2 * step(0.25).link);
  // fp32 ones stay: those that the host updates come, and their gradients go.
  EXPECT_NEAR(step(0.25, DType::kFloat32).link, 1 * double(kTimedParams) / 1e9, 1e-2 * step(0.25).link);
}

// They come for forward and for backward, and go back when the device has updated them. fp32 ones stay there.
TEST(StepTime, ParametersThatLeaveAloneCrossTheLink) {
  const MachineRates rates{.flops = 1e30, .host = {}, .link = 1e9, .disk = 1e9};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const int64_t batches : {1, 8}) {
      PlanOptions at = timed_options(3);
      at.compute_dtype = dtype;
      at.persistence_threshold = 0;
      at.parameter_tier = Tier::kHost;
      at.grad_accumulation_steps = batches;
      const PlannedStep step = plan_step(matrices(), at, tokens(1, false), rates);
      const bool leave = dtype == DType::kBFloat16;
      EXPECT_NEAR(step.link, leave ? 4 * double(batches) * double(kTimedParams) / 1e9 : 0, 1e-2 * step.link);
      EXPECT_EQ(step.update, 0);
      at.parameter_tier = Tier::kFile;
      const PlannedStep files = plan_step(matrices(), at, tokens(1, false), rates);
      EXPECT_DOUBLE_EQ(files.link, step.link);
      EXPECT_NEAR(files.reads, step.link, 1e-2 * files.reads);
      EXPECT_NEAR(files.disk, leave ? 2 * double(kTimedParams) / 1e9 : 0, 1e-2 * files.disk);
    }
  }
}

TEST(StepTime, RanksShareTheUpdateFromStage1On) {
  const MachineRates rates{.flops = 1e30, .host = 1e9, .link = {}, .disk = {}};
  PlanOptions at = timed_options(1, /*on_device=*/false);
  const double alone = plan_step(matrices(), at, tokens(1, false), rates).update;
  at.world_size = 4;
  EXPECT_NEAR(plan_step(matrices(), at, tokens(1, false), rates).update, alone / 4, 1e-6 * alone);
  at.stage = 0;
  EXPECT_NEAR(plan_step(matrices(), at, tokens(1, false), rates).update, alone, 1e-6 * alone);
}

TEST(StepTime, UpdateAndDiskOverlapAndTheLongerOneCounts) {
  PlanOptions at = timed_options(2, /*on_device=*/false);
  at.state_tier = Tier::kFile;
  for (const double disk : {24e8, 24e10}) {
    const PlannedStep step =
        plan_step(matrices(), at, tokens(1, false), {.flops = 1e13, .host = 28e9, .link = {}, .disk = disk});
    EXPECT_NEAR(step.disk, 24. * double(kTimedParams) / disk, 1e-3 * step.disk);
    EXPECT_DOUBLE_EQ(step.total(), step.forward + step.backward + std::max(step.update, step.disk));
  }
}

// Each shard is read for forward and for backward of each micro-batch, and written once, with its states.
TEST(StepTime, ParametersInFilesAreReadInEachMicroBatch) {
  PlanOptions at = timed_options(3, /*on_device=*/false);
  at.shard_one_rank = true;
  at.state_tier = at.parameter_tier = Tier::kFile;
  at.grad_accumulation_steps = 8;
  at.persistence_threshold = 0;
  const PlannedStep step =
      plan_step(matrices(), at, tokens(1, false), {.flops = 1e30, .host = 1e30, .link = {}, .disk = 1e9});
  EXPECT_NEAR(step.reads, 2 * 2 * 8 * double(kTimedParams) / 1e9, 0.01 * step.reads);
  EXPECT_NEAR(step.disk, 26 * double(kTimedParams) / 1e9, 0.01 * step.disk);
  EXPECT_DOUBLE_EQ(step.total(), step.reads + step.disk);
}

TEST(StepTime, RecomputationCostsAForward) {
  const MachineRates rates{.flops = 1e13, .host = {}, .link = {}, .disk = {}};
  const PlannedStep kept = plan_step(matrices(), timed_options(), tokens(1, false), rates);
  const PlannedStep checkpointed = plan_step(matrices(), timed_options(), tokens(1, true), rates);
  EXPECT_DOUBLE_EQ(kept.backward, 2 * kept.forward);
  EXPECT_DOUBLE_EQ(checkpointed.backward, 3 * kept.forward);
  EXPECT_EQ(kept.update, 0);  // by the device
  EXPECT_DOUBLE_EQ(kept.efficiency(), 1);
}

TEST(StepTime, InputsOfLayersThatLeaveTheDeviceCrossTheLink) {
  const MachineRates rates{.flops = 1e13, .host = {}, .link = 1e9, .disk = 1e9};
  PlanOptions at = timed_options();
  at.grad_accumulation_steps = 3;
  ActivationOptions inputs = tokens(1, true);
  EXPECT_EQ(plan_step(matrices(), at, inputs, rates).link, 0);
  for (const Tier tier : {Tier::kHost, Tier::kFile}) {
    inputs.checkpoints = tier;
    inputs.on_device = true;
    const double left = plan_activations(matrices(), inputs).elsewhere;
    EXPECT_GT(left, 0);
    EXPECT_DOUBLE_EQ(plan_step(matrices(), at, inputs, rates).link, 3 * left / 1e9);
    inputs.on_device = false;
    EXPECT_EQ(plan_step(matrices(), at, inputs, rates).link, 0);
  }
}

// 6 P + 12 L h s operations a token, P without the embeddings that are looked up: Llama 3 8B as torchtitan counts it.
TEST(StepTime, OperationsOfLlama) {
  const ModelShapes model = parse_model_shapes(
      R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false})",
      "test");
  const ActivationOptions row{.batch = 1, .sequence_length = 8192};
  const PlannedStep step = plan_step(model, timed_options(), row, {.flops = 1, .host = {}, .link = {}, .disk = {}});
  const double params = double(model.numel()) - 128256. * 4096;
  const double expected = 8192 * (6 * params + 12. * 32 * 4096 * 8192);
  EXPECT_NEAR(step.forward + step.backward, expected, 1e-9 * expected);
  // 5762 tokens/s are 33.7 % of the 989e12 operations of an H100.
  EXPECT_NEAR(expected / 8192 * 5762 / 989e12, 0.337, 0.001);
}

TEST(StepTime, ARateThatIsNeededMustBeKnown) {
  PlanOptions at = timed_options();
  at.state_tier = at.gradient_tier = Tier::kHost;
  const auto error = [&](const MachineRates& rates) {
    try {
      plan_step(matrices(), at, tokens(1, false), rates);
    } catch (const ValueError& thrown) {
      return std::string(thrown.what());
    }
    return std::string();
  };
  EXPECT_THAT(error({.flops = 0, .host = 1., .link = 1., .disk = 1.}), HasSubstr("got 0"));
  EXPECT_THAT(error({.flops = 1, .host = {}, .link = 1., .disk = 1.}), HasSubstr("'host' is not known"));
  EXPECT_THAT(error({.flops = 1, .host = 1., .link = {}, .disk = 1.}), HasSubstr("'link' is not known"));
  EXPECT_EQ(error({.flops = 1, .host = 1., .link = 1., .disk = {}}), "");
}

TEST(BestChange, OfASlowDiskIsASecondDiskOrFewerSteps) {
  PlanOptions at = timed_options(2, /*on_device=*/false);
  at.state_tier = Tier::kFile;
  MachineRates rates{.flops = 1e15, .host = 1e12, .link = {}, .disk = 1e9};
  const auto change = best_change(matrices(), at, tokens(1, false), rates);
  ASSERT_TRUE(change.has_value());
  const PlannedStep now = plan_step(matrices(), at, tokens(1, false), rates);
  EXPECT_GT(change->step.tokens / change->step.total(), 1.9 * now.tokens / now.total());
  rates.disk = 1e15;  // now it computes nearly all the time
  EXPECT_FALSE(best_change(matrices(), at, tokens(64, false), rates).has_value());
}

}  // namespace
}  // namespace zeroshard

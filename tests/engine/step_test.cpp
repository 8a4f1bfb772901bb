#include "engine/step.h"

#include <limits>

#include "engine/parts.h"

namespace zeroshard::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct StepParts : PassParts {
  using PassParts::PassParts;

  StepResult prepare(bool save_failed = false) { return step.prepare(options.param_groups, save_failed); }
  void finish(const StepResult& result) {
    step.finish(result, [&] { update.apply(step.update_inputs(options.param_groups)); });
  }

  UserWrites writes{ranks, memory, *executor, optimizer};
  Update update{options, plan, ranks, memory, *executor, *reducer, writes, optimizer};
  Step step{options, ranks, memory, *executor, *reducer, pass, writes, update};
};

void run_on_two_ranks(const std::function<void(StepParts&)>& body) {
  for (const int stage : {0, 1, 2, 3})
    EXPECT_THAT(run_parts<StepParts>(make_scenario(2, stage), body), Each(std::string())) << "stage " << stage;
}

TEST(Step, ClipsAndAppliesTheGradientsOfItsPasses) {
  run_everywhere<StepParts>([](StepParts& parts) {
    const at::Tensor before = parts.values();
    parts.train(0);
    const StepResult result = parts.prepare();
    EXPECT_TRUE(result.applied);
    EXPECT_FALSE(result.stop || result.save_failed);
    EXPECT_GT(result.grad_norm, parts.options.config.gradient_clipping);
    EXPECT_FLOAT_EQ(parts.step.grad_scale(),
                    float(parts.options.config.gradient_clipping) / (float(result.grad_norm) + 1e-6F));
    EXPECT_TRUE(parts.step.has_grad(*parts.memory.groups->trained().front(), 0));
    EXPECT_TRUE(parts.values().equal(before));  // until finish()
    parts.finish(result);
    EXPECT_FALSE(parts.values().equal(before));
    EXPECT_FALSE(parts.pass.progress().is_unapplied());
    EXPECT_EQ(parts.pass.progress().counts().global_steps, 1);
    EXPECT_EQ(parts.pass.last_grad_scale(), result.loss_scale);
  });
}

TEST(Step, CountsButChangesNothingWithoutAPass) {
  run_everywhere<StepParts>([](StepParts& parts) {
    const at::Tensor before = parts.values();
    for (int step = 1; step <= 2; ++step) {
      const StepResult result = parts.prepare();
      EXPECT_TRUE(result.applied);
      EXPECT_EQ(result.grad_norm, 0);
      parts.finish(result);
      EXPECT_EQ(parts.pass.progress().counts().global_steps, step);
    }
    EXPECT_TRUE(parts.values().equal(before));
  });
}

TEST(Step, SkipsGradientsThatAreNotFiniteOnOneRank) {
  run_on_two_ranks([](StepParts& parts) {
    parts.options.config.max_skipped_steps = 2;
    const at::Tensor before = parts.values();
    for (int skipped = 1; skipped <= 2; ++skipped) {
      parts.reduce(parts.rank() == 1 ? std::numeric_limits<double>::infinity() : 1);
      const StepResult result = parts.prepare();
      EXPECT_FALSE(result.applied);
      const auto finish = [&] { parts.step.finish(result, [] { ADD_FAILURE() << "a skipped step is not applied"; }); };
      if (skipped == 1) {
        finish();
      } else {
        EXPECT_THAT(finish, ThrowsMessage<StateError>(AllOf(HasSubstr("2 steps in a row"), HasSubstr("units.0.0"))));
      }
      EXPECT_EQ(parts.pass.progress().counts().skipped_steps, skipped);
    }
    EXPECT_TRUE(parts.values().equal(before));
  });
}

TEST(Step, SharesTheSignalsOfOneRank) {
  run_on_two_ranks([](StepParts& parts) {
    for (int twice = 0; twice < 2 && parts.rank() == 1; ++twice) parts.step.request_stop();
    const StepResult result = parts.prepare(/*save_failed=*/parts.rank() == 0);
    EXPECT_TRUE(result.applied && result.stop && result.save_failed);
    parts.finish(result);
    EXPECT_FALSE(parts.prepare().save_failed);
  });
}

TEST(Step, RefusesRanksThatDiffer) {
  run_on_two_ranks([](StepParts& parts) {
    parts.options.param_groups[0].lr = parts.rank() == 1 ? 0.5 : 0.25;
    EXPECT_THAT([&] { parts.prepare(); },
                ThrowsMessage<ValueError>(AllOf(HasSubstr("lr of group 0"), HasSubstr("0.5"))));
    parts.options.param_groups[0].lr = 0.5;
    parts.param(1, 0).set_requires_grad(parts.rank() == 0);
    EXPECT_THAT([&] { parts.prepare(); }, ThrowsMessage<ValueError>(HasSubstr("units.1.0")));
    parts.param(1, 0).set_requires_grad(true);
    parts.finish(parts.prepare());
  });
}

TEST(Step, RefusesGradientsThatAUserAssignsOnOneRank) {
  run_on_two_ranks([](StepParts& parts) {
    if (parts.rank() == 1) parts.param(3, 1).mutable_grad() = at::full(parts.param(3, 1).sizes(), 1.F);
    EXPECT_THAT([&] { parts.prepare(); },
                ThrowsMessage<StateError>(HasSubstr(parts.rank() == 1 ? "parameter 'units.3.1'" : "on another rank")));
    parts.pass.zero_grad();
    parts.finish(parts.prepare());
  });
}

TEST(Step, RefusesGradientsThatOnlySomeRanksHave) {
  run_on_two_ranks([](StepParts& parts) {
    if (parts.rank() == 0) parts.pass.progress().end_pass();
    EXPECT_THAT([&] { parts.prepare(); },
                ThrowsMessage<StateError>(HasSubstr(parts.rank() == 0 ? "rank 0 has some" : "rank 1 has none")));
  });
}

TEST(Step, DoesNotCountAStepThatCannotBeApplied) {
  run_everywhere<StepParts>([](StepParts& parts) {
    parts.train(0);
    const StepResult result = parts.prepare();
    EXPECT_THROW(parts.step.finish(result, [] { throw IoError("a disk is full"); }), IoError);
    EXPECT_EQ(parts.pass.progress().counts().global_steps, 0);
    EXPECT_TRUE(parts.pass.progress().is_unapplied());
    parts.finish(parts.prepare());  // the gradients are still there
    EXPECT_EQ(parts.pass.progress().counts().global_steps, 1);
  });
}

}  // namespace
}  // namespace zeroshard::test

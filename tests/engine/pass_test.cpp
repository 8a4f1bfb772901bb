#include "engine/pass.h"

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/parts.h"

namespace zeroshard::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The sum of squares of all gradients, which is the same for the same gradients.
double squares_of(PassParts& parts) {
  return agree_on_step(parts.ranks.all, parts.reducer->squares(), {}, {}, {}).squares;
}

void expect_no_gradients(PassParts& parts) {
  const StepProgress& progress = parts.pass.progress();
  EXPECT_FALSE(progress.is_unapplied() || progress.has_open_gradients() || progress.is_in_pass());
  EXPECT_EQ(progress.micro_batches(), 0);
  for (size_t u = 0; u < kUnits; ++u) EXPECT_FALSE(parts.reducer->has_grad(u, 0));
}

TEST(Pass, ReducesTheGradientsOfEachPassAndAddsThoseOfLaterOnes) {
  run_everywhere<PassParts>([](PassParts& parts) {
    const ParamSpec& param = parts.plan.layouts[0].params[0];
    parts.pass.begin_forward(/*training=*/true);
    const at::Tensor loss = parts.forward(0);
    parts.pass.begin(/*sync=*/true);
    loss.backward();
    EXPECT_TRUE(parts.pass.progress().is_in_pass());
    EXPECT_THAT([&] { parts.pass.check_reduced(param); }, ThrowsMessage<StateError>(HasSubstr("is not reduced yet")));
    parts.pass.end();
    parts.pass.check_reduced(param);
    EXPECT_TRUE(parts.pass.progress().is_unapplied());
    EXPECT_FALSE(parts.pass.progress().has_plain_gradients());
    const double once = squares_of(parts);
    EXPECT_GT(once, 0);
    parts.train(0);
    EXPECT_EQ(squares_of(parts), 4 * once);
  });
}

TEST(Pass, KeepsUnsyncedGradientsOnTheirRank) {
  run_everywhere<PassParts>([](PassParts& parts) {
    parts.pass.begin_forward(/*training=*/true);
    const at::Tensor loss = parts.forward(0);
    parts.pass.begin(/*sync=*/false);
    loss.backward();
    parts.pass.end();
    EXPECT_TRUE(parts.pass.progress().is_unsynced());
    EXPECT_THAT([&] { parts.pass.check_reduced(parts.plan.layouts[0].params[0]); },
                ThrowsMessage<StateError>(HasSubstr("is on this rank only")));
    parts.pass.begin(/*sync=*/true);  // a pass without gradients of its own reduces them
    parts.pass.end();
    EXPECT_FALSE(parts.pass.progress().is_unsynced());
    EXPECT_GT(squares_of(parts), 0);
  });
}

TEST(Pass, DiscardsOnAllRanksAPassThatFailedOnSome) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto errors = run_parts<PassParts>(make_scenario(3, stage), [](PassParts& parts) {
      parts.train(0);
      const double first = squares_of(parts);
      parts.pass.begin_forward(/*training=*/true);
      const at::Tensor loss = parts.forward(1);
      parts.pass.begin(/*sync=*/true);
      if (parts.rank() == 0) {
        loss.backward();
        EXPECT_THAT([&] { parts.pass.end(); }, ThrowsMessage<StateError>(HasSubstr("from rank 1: no batch")));
      } else {  // the first of the ranks that failed tells why
        EXPECT_EQ(parts.pass.end(parts.rank() == 1 ? "no batch" : "too late"), "rank 1: no batch");
      }
      expect_no_gradients(parts);
      parts.train(0);
      EXPECT_EQ(squares_of(parts), first);
    });
    EXPECT_THAT(errors, Each(std::string()));
  }
}

TEST(Pass, TakesALossBackwardThatNobodyHasBegun) {
  run_everywhere<PassParts>([](PassParts& parts) {
    parts.train(0);
    const double expected = squares_of(parts);
    parts.pass.zero_grad();
    expect_no_gradients(parts);
    parts.pass.begin_forward(/*training=*/true);
    parts.forward(0).backward();
    EXPECT_TRUE(parts.pass.progress().has_plain_gradients());
    EXPECT_TRUE(parts.pass.progress().is_unapplied());
    EXPECT_EQ(squares_of(parts), expected);
  });
}

TEST(Pass, DiscardsALossBackwardThatFailed) {
  run_everywhere<PassParts>([](PassParts& parts) {
    parts.pass.discard_failed();  // nothing has failed
    parts.train(0);
    const double expected = squares_of(parts);
    parts.pass.zero_grad();
    parts.pass.begin_forward(/*training=*/true);
    const at::Tensor loss = parts.forward(0);
    const auto hook = parts.param(0, 0).register_hook([](const at::Tensor&) { throw ValueError("the user's hook"); });
    EXPECT_THROW(loss.backward(), std::exception);
    EXPECT_TRUE(parts.pass.progress().has_open_gradients());
    for (int twice = 0; twice < 2; ++twice) parts.pass.discard_failed();
    expect_no_gradients(parts);
    parts.param(0, 0).remove_hook(hook);
    parts.train(0);
    EXPECT_EQ(squares_of(parts), expected);
  });
}

TEST(Pass, CountsNoPassThatGivesParametersNoGradient) {
  run_everywhere<PassParts>([](PassParts& parts) {
    parts.train(0);
    const double before = squares_of(parts);
    const StepProgress& progress = parts.pass.progress();
    parts.pass.begin_forward(/*training=*/true);
    const at::Tensor loss = parts.forward(1);
    torch::autograd::grad({loss}, {parts.param(0, 0)});
    EXPECT_FALSE(progress.has_open_gradients());
    EXPECT_EQ(parts.pass.told_reducer_before_first_gradient(), parts.executor->has_sharded_units());
    if (parts.pass.told_reducer_before_first_gradient()) parts.pass.end();
    EXPECT_EQ(squares_of(parts), before);
  });
}

TEST(Pass, RefusesABackwardOfParametersThatHaveChanged) {
  run_everywhere<PassParts>([](PassParts& parts) {
    parts.pass.begin_forward(/*training=*/true);
    const at::Tensor loss = parts.forward(0);
    parts.pass.refuse_earlier_forwards();
    parts.pass.begin(/*sync=*/true);
    EXPECT_THAT([&] { loss.backward(); }, ThrowsMessage<std::exception>(HasSubstr("would use other parameters")));
    EXPECT_EQ(parts.pass.end("other parameters"), "rank 0: other parameters");
    parts.train(0);  // forwards after the change are not refused
  });
}

TEST(Pass, RemembersTheScaleOfGradientsUntilNewOnesArrive) {
  run_everywhere<PassParts>([](PassParts& parts) {
    EXPECT_FALSE(parts.pass.last_grad_scale());
    parts.train(0);
    EXPECT_FALSE(parts.pass.last_grad_scale());
    parts.pass.end_step(8);
    parts.pass.begin_forward(/*training=*/false);
    EXPECT_EQ(parts.pass.last_grad_scale(), 8);
    parts.pass.begin_forward(/*training=*/true);
    EXPECT_FALSE(parts.pass.last_grad_scale());
  });
}

TEST(Pass, LeavesGradientsAloneWithoutItsHooks) {
  run_everywhere<PassParts>([](PassParts& parts) {
    parts.pass.begin_forward(/*training=*/true);
    const at::Tensor loss = parts.forward(0);
    for (int twice = 0; twice < 2; ++twice) parts.pass.remove_hooks();
    parts.pass.renew_hooks(0);
    if (!parts.executor->has_sharded_units()) {  // else the graph has lost the parameters
      loss.backward();
      EXPECT_TRUE(parts.param(0, 0).grad().defined());
    }
    expect_no_gradients(parts);
  });
}

}  // namespace
}  // namespace zeroshard::test

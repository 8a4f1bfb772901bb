#include <gmock/gmock.h>

#include "world/support.h"

namespace zeroshard::test {
namespace {

using ::testing::Each;

// The gradients of a step whose last pass was under no_sync travel with the step.
TEST(Accumulation, AStepTakesWhatNoSyncHasLeft) {
  for (int world_size = 1; world_size <= 3; ++world_size) {
    for (const int stage : {0, 1, 2, 3}) {
      Scenario scenario = make_scenario(world_size, stage);
      scenario.steps = 3;
      scenario.config.grad_accumulation_steps = 2;
      scenario.no_sync = true;
      SCOPED_TRACE(scenario.text());
      const Result expected = train(scenario);
      ThreadWorld world(scenario);
      const auto errors = world.run([&](Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        Engine& engine = *rank.engine;
        for (int step = 0; step < scenario.steps; ++step) {
          for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
            engine.begin_forward(/*training=*/true);
            const at::Tensor loss = loss_of(rank.model, scenario, rank.gather.rank(), step, micro_batch, &engine);
            engine.begin_backward(/*sync=*/false);
            engine.scale_loss(loss).backward();
            engine.end_backward();
            if (engine.progress().is_boundary()) {
              rank.result.steps.push_back(engine.step());
            } else {
              engine.end_micro_batch();
            }
          }
        }
        EXPECT_EQ(engine.progress().global_steps, scenario.steps);
        EXPECT_EQ(engine.progress().micro_steps, 2 * scenario.steps);
        rank.finish();
      });
      ASSERT_THAT(errors, Each(""));
      const Result got = world.rank(0).result;
      EXPECT_TRUE(got.values.equal(expected.values));
      for (size_t step = 0; step < expected.steps.size(); ++step)
        EXPECT_EQ(got.steps[step].grad_norm, expected.steps[step].grad_norm);
    }
  }
}

}  // namespace
}  // namespace zeroshard::test

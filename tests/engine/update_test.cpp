#include "engine/update.h"

#include "engine/parts.h"

namespace zeroshard::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;

struct UpdateParts : Foundation {
  using Foundation::Foundation;

  Update::Inputs step(bool has_grad = true, float grad_scale = 1) {
    flags.clear();
    for (const ShardedGroup* const group : memory.groups->trained()) flags.emplace_back(group->num_params(), has_grad);
    return {options.param_groups, flags, grad_scale};
  }
  // Gradients whose mean over the ranks is 1.
  void reduce_ones() {
    reduce(ranks.all.world_size() == 1 ? 1 : 2 * rank());
    reducer->gather_reduced();
  }

  std::vector<std::vector<bool>> flags;
  UserWrites writes{ranks, memory, *executor, optimizer};
  Update update{options, plan, ranks, memory, *executor, *reducer, writes, optimizer};
};

Scenario plain_sgd(int world_size, int stage) {
  Scenario scenario = make_scenario(world_size, stage);
  *scenario.config.optimizer = {};
  scenario.config.optimizer->type = OptimizerConfig::Type::kSgd;
  scenario.config.optimizer->lr = 0.5;
  scenario.config.optimizer->weight_decay = 0;
  return scenario;
}

void run_sgd(const std::function<void(UpdateParts&)>& body) {
  for (const int stage : {0, 1, 2, 3})
    for (const int world_size : {1, 2})
      EXPECT_THAT(run_parts<UpdateParts>(plain_sgd(world_size, stage), body), Each(std::string()))
          << "stage " << stage << ", world " << world_size;
}

TEST(Update, GivesAllRanksTheNewParameters) {
  run_sgd([](UpdateParts& parts) {
    at::Tensor expected = parts.values();
    for (int twice = 0; twice < 2; ++twice) {
      parts.reduce_ones();
      parts.update.announce_gradients(parts.step());
      parts.update.apply(parts.step(true, /*grad_scale=*/0.25F));
      parts.reducer->end_step();
      expected = expected - 0.125;
      EXPECT_TRUE(parts.values().equal(expected));
    }
  });
}

TEST(Update, ChangesNothingWithoutGradients) {
  run_sgd([](UpdateParts& parts) {
    const at::Tensor before = parts.values();
    parts.update.announce_gradients(parts.step(false));
    parts.update.apply(parts.step(false));
    parts.update.end_gradients();
    EXPECT_TRUE(parts.values().equal(before));
  });
}

TEST(Update, VisitsEachTrainedGroupOnceInTheOrderOfForward) {
  run_sgd([](UpdateParts& parts) {
    std::vector<const ShardedGroup*> visited, expected;
    for (const size_t unit : parts.reducer->order_of_forward())
      for (const ShardedGroup& group : parts.memory.groups->of_unit(unit))
        if (group.is_trained()) expected.push_back(&group);
    parts.update.update_and_refresh([&](ShardedGroup& group) { visited.push_back(&group); });
    EXPECT_THAT(expected, SizeIs(kUnits));
    EXPECT_THAT(visited, ElementsAreArray(expected));
  });
}

TEST(Update, CanFollowAnUpdateThatThrew) {
  run_sgd([](UpdateParts& parts) {
    const at::Tensor before = parts.values();
    parts.reduce_ones();
    EXPECT_THROW(parts.update.update_and_refresh([](ShardedGroup&) { throw ValueError("the first group"); }),
                 ValueError);
    parts.update.end_gradients();
    parts.update.apply(parts.step());
    EXPECT_TRUE(parts.values().equal(before - 0.5));
  });
}

TEST(Update, TellsAutogradOfParametersWithGradients) {
  run_sgd([](UpdateParts& parts) {
    const auto version = [&](size_t unit) { return parts.param(unit, 0)._version(); };
    const auto before = version(0), last = version(kBlocks);
    parts.step();
    parts.flags.front().assign(parts.flags.front().size(), false);
    parts.update.tell_autograd(&parts.flags);
    EXPECT_EQ(version(0), before);
    EXPECT_GT(version(kBlocks), last);
    parts.update.tell_autograd();
    EXPECT_GT(version(0), before);
  });
}

TEST(Update, HasNothingToPublishUnlessUpdatesAreDelayed) {
  run_sgd([](UpdateParts& parts) {
    const at::Tensor before = parts.values();
    EXPECT_FALSE(parts.update.is_delayed() || parts.update.is_pending() || parts.update.is_on_thread());
    for (int twice = 0; twice < 2; ++twice) {
      parts.update.await();
      parts.update.publish();
      parts.update.retire();
    }
    EXPECT_TRUE(parts.values().equal(before));
  });
}

}  // namespace
}  // namespace zeroshard::test

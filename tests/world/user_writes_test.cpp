#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "world/support.h"
#include "zeroshard/error.h"

// What a program writes to parameters between the steps of an engine.
namespace zeroshard::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kUnit = 1;
constexpr char kName[] = "'units.1.0'";

enum class How : uint8_t { kInPlace, kOtherMemory };

void write(const at::Tensor& param, double factor, How how) {
  const at::NoGradGuard no_grad;
  if (how == How::kInPlace)
    at::Tensor(param).mul_(factor);
  else
    param.set_data(param.detach() * factor);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const StateError& error) {
    return error.what();
  }
}

// Steps leave the parameters as they are.
Scenario still(int stage) {
  Scenario scenario = make_scenario(/*world_size=*/2, stage);
  scenario.config.optimizer->lr = scenario.config.optimizer->weight_decay = 0;
  return scenario;
}

using Step = std::function<void(Rank& rank, int step)>;

// What two steps say on each rank after `write_on` was called there, and the values of the parameter then.
struct Said {
  std::vector<std::string> messages;
  std::vector<at::Tensor> before, after;
  std::vector<int> at_home;  // whether the parameter is in the engine's memory again
};

Said steps_after(
    int stage, const std::function<void(int rank, const at::Tensor& param)>& write_on,
    const Step& step_of = [](Rank& rank, int step) { rank.train_step(step); }) {
  ThreadWorld world(still(stage));
  Said said{std::vector<std::string>(4), std::vector<at::Tensor>(2), std::vector<at::Tensor>(2), std::vector<int>(2)};
  const auto errors = world.run([&](Rank& rank) {
    at::set_num_threads(1);
    const auto index = size_t(rank.gather.rank());
    rank.make_engine();
    rank.train_step(0);
    const at::Tensor& param = rank.model.params()[kUnit][0];
    said.before[index] = param.detach().clone();
    const void* const memory = param.const_data_ptr();
    write_on(int(index), param);
    for (const int step : {1, 2})
      said.messages[2 * index + size_t(step) - 1] = message_of([&] { step_of(rank, step); });
    said.after[index] = param.detach().clone();
    said.at_home[index] = param.const_data_ptr() == memory;
  });
  EXPECT_THAT(errors, Each(""));
  return said;
}

TEST(UserWrites, WhatAllRanksWriteCounts) {
  for (const int stage : {0, 1, 2}) {
    for (const How how : {How::kInPlace, How::kOtherMemory}) {
      const Said said = steps_after(stage, [&](int, const at::Tensor& param) { write(param, 0.5, how); });
      EXPECT_THAT(said.messages, Each(""));
      EXPECT_THAT(said.at_home, Each(1)) << "what is trained is elsewhere";
      for (size_t rank = 0; rank < 2; ++rank)
        EXPECT_TRUE(said.after[rank].equal(said.before[rank] * 0.5)) << "stage " << stage;
    }
  }
}

TEST(UserWrites, WhatOneRankWritesIsNamedOnAllUntilItIsMended) {
  for (const int stage : {0, 1, 2}) {
    for (const How how : {How::kInPlace, How::kOtherMemory}) {
      const Said said = steps_after(stage, [&](int rank, const at::Tensor& param) {
        if (rank == 0) write(param, 0.5, how);
      });
      EXPECT_THAT(said.messages, Each(AllOf(HasSubstr(kName), HasSubstr("not the same on every rank"))));
    }
  }
}

TEST(UserWrites, MemoryOfAnotherShapeIsRefusedOnAllRanks) {
  const auto without_forward = [](Rank& rank, int) { rank.engine->prepare_step(); };
  const Said said = steps_after(
      /*stage=*/1,
      [](int rank, const at::Tensor& param) {
        if (rank == 1) param.set_data(at::empty({kWidth + 1, kWidth}));
      },
      without_forward);
  EXPECT_THAT(said.messages, Each(AllOf(HasSubstr(kName), HasSubstr("another shape than [48, 48]"))));
}

// Around the tensor's count of writes, too.
TEST(UserWrites, WhatIsWrittenWhileItIsGatheredForReadingIsAnError) {
  for (const int stage : {0, 1, 3}) {
    ThreadWorld world(still(stage));
    const auto errors = world.run([&](Rank& rank) {
      rank.make_engine();
      rank.engine->gather({kUnit});
      rank.model.params()[kUnit][0].variable_data().mul_(0.5);
      EXPECT_THAT(message_of([&] { rank.engine->release({kUnit}); }),
                  AllOf(HasSubstr(kName), HasSubstr("without modify_rank")));
      rank.engine->gather({kUnit});
      EXPECT_EQ(message_of([&] { rank.engine->release({kUnit}); }), "") << "nothing was written now";
    });
    EXPECT_THAT(errors, Each(""));
  }
}

// A pass that ends early leaves units that were gathered ahead, with the values from before.
TEST(UserWrites, WeightsThatAreSetAfterAPassThatEndedEarlyCount) {
  for (const int world_size : {1, 2}) {
    for (const int64_t persistence : {0, 1 << 20}) {
      std::vector<at::Tensor> outputs, values;
      for (const bool early : {false, true}) {
        Scenario scenario = make_scenario(world_size, /*stage=*/3);
        scenario.config.persistence_threshold = persistence;
        SCOPED_TRACE(scenario.text());
        ThreadWorld world(scenario);
        std::vector<at::Tensor> seen(static_cast<size_t>(world_size));
        const auto errors = world.run([&](Rank& rank) {
          at::set_num_threads(1);
          rank.make_engine();
          const auto evaluate = [&rank](size_t units) {
            const at::NoGradGuard no_grad;
            rank.engine->begin_forward(/*training=*/false);
            at::Tensor x = input_of(rank.scenario, /*rank=*/0, /*step=*/0, /*micro_batch=*/0);
            for (size_t u = 0; u < units; ++u) x = rank.engine->unit(u, [&] { return rank.model.forward(u, x); });
            return x;
          };
          evaluate(kUnits);
          rank.train_step(0);  // from here on, no unit is whole
          if (early) evaluate(1);
          for (const size_t unit : {1, 2})
            rank.engine->set_weights(unit, 0, 0, at::full({kWidth * kWidth}, 0.01F * float(unit)));
          seen[size_t(rank.gather.rank())] = evaluate(kUnits);
          rank.train_step(1);
          rank.finish();
        });
        for (const std::string& error : errors) ASSERT_EQ(error, "");
        for (const at::Tensor& other : seen) EXPECT_TRUE(other.equal(seen[0]));
        outputs.push_back(seen[0]);
        values.push_back(world.rank(0).result.values);
      }
      EXPECT_TRUE(outputs[0].equal(outputs[1]));
      EXPECT_TRUE(values[0].equal(values[1]));
    }
  }
}

}  // namespace
}  // namespace zeroshard::test

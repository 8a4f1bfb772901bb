// Engines on a card. Its own matrix products round otherwise than the CPU's, so values are compared with a tolerance,
// and stages with one another bit by bit. One rank: ranks that are threads would share the card's one backward thread.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "comm_c10d/make_comm.h"
#include "world/support.h"

namespace zeroshard::test {
namespace {

const at::Device kCard(at::kCUDA, 0);

Scenario on_the_card(Scenario scenario) {
  scenario.config.shard_one_rank = true;
  scenario.device_of = [](int) { return kCard; };
  scenario.make_world = [](int) {
    std::vector<std::unique_ptr<Comm>> comms;
    comms.push_back(make_comm("", kCard));
    return comms;
  };
  return scenario;
}

class CudaTraining : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "needs a GPU";
  }
};

INSTANTIATE_TEST_SUITE_P(Stages, CudaTraining, ::testing::Values(0, 1, 2, 3));

TEST_P(CudaTraining, GivesNearlyTheCpusValues) {
  const Scenario scenario = make_scenario(1, GetParam());
  const Result expected = train(scenario), result = train(on_the_card(scenario));
  ASSERT_FALSE(HasFailure());
  // In the mean: where a gradient is nearly zero, a rounding error turns Adam's step of 0.01 around.
  EXPECT_LE((expected.values - result.values).abs().mean().item<float>(), 1e-4F);
}

TEST_P(CudaTraining, EveryStageGivesTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario first = make_scenario(1, 0), scenario = make_scenario(1, GetParam());
    first.config.compute_dtype = scenario.config.compute_dtype = dtype;
    const Result expected = train(on_the_card(first)), result = train(on_the_card(scenario));
    ASSERT_FALSE(HasFailure());
    EXPECT_TRUE(expected.values.equal(result.values));
  }
}

// The current stream waits for the one before it, as torch asks of its users.
void move_to(const c10::cuda::CUDAStream& stream) {
  c10::cuda::getCurrentCUDAStream().synchronize();
  c10::cuda::setCurrentCUDAStream(stream);
}

TEST_P(CudaTraining, StreamsOfTheUsersGiveTheSameBits) {
  const Scenario scenario = on_the_card(make_scenario(1, GetParam()));
  const Result expected = train(scenario);
  ThreadWorld world(scenario);
  const auto errors = world.run([](Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
    for (int step = 0; step < rank.scenario.steps; ++step) {
      move_to(c10::cuda::getStreamFromPool());
      rank.engine->begin_forward(/*training=*/true);
      const at::Tensor loss = loss_of(rank.model, rank.scenario, 0, step, /*micro_batch=*/0, rank.engine.get());
      move_to(c10::cuda::getStreamFromPool());
      rank.engine->backward(loss);
      move_to(c10::cuda::getStreamFromPool());
      rank.engine->step();
      move_to(before);
    }
    rank.finish();
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  EXPECT_TRUE(expected.values.equal(world.rank(0).result.values));
}

}  // namespace
}  // namespace zeroshard::test

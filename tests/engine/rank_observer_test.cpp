// What the observer hears that an engine is given.
#include "zeroshard/rank_observer.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "world/support.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

using ::testing::ElementsAre;

struct Recorder final : RankObserver {
  void step_finished(int64_t step) noexcept override { heard.push_back("step " + std::to_string(step)); }
  void engine_ended() noexcept override { heard.push_back("ended"); }
  void waiting(std::string_view) noexcept override {}
  void done_waiting() noexcept override {}
  void meeting_began(int) noexcept override {}
  void meeting_ended() noexcept override {}

  std::vector<std::string> heard;
};

TEST(RankObserver, HearsOfTheStepsOfAnEngineAndOfItsEnd) {
  const test::Scenario scenario = test::make_scenario(1, 2);
  const auto recorder = std::make_shared<Recorder>();
  World world(scenario.config, RankEnvironment(), recorder);
  test::Model model({}, 1);
  {
    EngineOptions options;
    options.config = scenario.config;
    options.observer = world.observer();
    Engine engine(model.definitions(), options, world.gather(), world.reduce());
    for (int step = 0; step < 2; ++step) {
      engine.begin_forward(/*training=*/true);
      engine.backward(test::loss_of(model, scenario, 0, step, 0, &engine));
      engine.step();
    }
    EXPECT_THAT(recorder->heard, ElementsAre("step 1", "step 2"));
  }
  EXPECT_THAT(recorder->heard, ElementsAre("step 1", "step 2", "ended"));
}

}  // namespace
}  // namespace zeroshard

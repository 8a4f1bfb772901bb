#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "file/support.h"
#include "zeroshard/error.h"
#include "zeroshard/nn.h"

// An engine that keeps the world over which it works.
namespace zeroshard {
namespace {

namespace nn = torch::nn;
using testing::TemporaryDirectory;

std::unique_ptr<Engine> make_engine(std::vector<UnitDefinition> units) {
  EngineOptions options;
  options.config = parse_config(R"({"train_batch_size": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0,
                                    "optimizer": {"type": "SGD", "params": {"lr": 0.5}}})")
                       .config;
  auto world = std::make_unique<World>(options.config);
  return std::make_unique<Engine>(std::move(units), std::move(options), std::move(world));
}

TEST(OwnWorld, ServesAsLongAsTheEngine) {
  nn::Linear model(3, 3);
  ModuleUnits units(*model);
  const auto engine = make_engine(units.definitions());
  ASSERT_NE(engine->world(), nullptr);
  EXPECT_EQ(engine->world()->world_size(), 1);
  const at::Tensor before = model->weight.detach().clone();
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    engine->begin_forward(/*training=*/true);
    engine->backward(engine->unit(0, [&] { return model->forward(at::ones({1, 3})).sum(); }));
  }
  engine->step();
  EXPECT_TRUE(at::allclose(model->weight, before - 0.5));
  EXPECT_EQ(engine->progress().counts(),
            (NamedCounts{{"global_steps", 1}, {"micro_steps", 2}, {"global_samples", 2}, {"skipped_steps", 0}}));
  const TemporaryDirectory root;
  engine->save_checkpoint(root.path(), "one", 1);
  EXPECT_TRUE(engine->wait_for_checkpoint());
}

TEST(OwnWorld, GoesWithAnEngineThatCannotBeMade) {
  EXPECT_THROW(make_engine({}), ValueError);
  nn::Linear model(3, 3);
  ModuleUnits units(*model);
  EXPECT_NE(make_engine(units.definitions()), nullptr);
}

}  // namespace
}  // namespace zeroshard

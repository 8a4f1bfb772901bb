#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/configuration.h"
#include "zeroshard/error.h"
#include "zeroshard/nn.h"

namespace zeroshard {
namespace {

namespace nn = torch::nn;

struct SavedBlockImpl : nn::Module {
  nn::Linear linear = register_module("linear", nn::Linear(6, 6));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(6));
  at::Tensor forward(const at::Tensor& x) { return at::dropout(norm(linear(x)), 0.3, is_training()); }
};

struct SavedModelImpl : nn::Module {
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  SavedModelImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<SavedBlockImpl>());
  }
};

ParsedConfig parsed(int stage, const std::string& optimizer = "AdamW") {
  return testing::configuration(R"({"optimizer": {"type": ")" + optimizer +
                                R"(", "params": {"lr": 0.01}},
                          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 9}},
                          "zero_optimization": {"stage": )" +
                                std::to_string(stage) + "}}");
}

// A model with its engine, in a world of one.
struct TrainingRun {
  explicit TrainingRun(int stage, uint64_t seed, const std::string& optimizer = "AdamW")
      : config(parsed(stage, optimizer)), world(config.config) {
    torch::manual_seed(seed);
    model = std::make_shared<SavedModelImpl>();
    engine = std::make_unique<ModuleEngine>(*model, config, world);
  }
  // The losses of some steps on random data, and what is left at the end.
  std::vector<double> train(int steps) {
    std::vector<double> result;
    for (int step = 0; step < steps; ++step) {
      engine->begin_forward(true);
      at::Tensor x = at::randn({5, 6});
      for (size_t i = 0; i < model->blocks->size(); ++i) x = engine->call(model->blocks->ptr<SavedBlockImpl>(i), x);
      const at::Tensor loss = at::mse_loss(x, at::randn({5, 6}));
      engine->backward(loss);
      engine->step();
      result.push_back(loss.item<double>());
    }
    result.push_back(engine->lr());
    for (const auto& item : model->named_buffers()) result.push_back(item.value().to(at::kDouble).sum().item<double>());
    return result;
  }

  ParsedConfig config;
  World world;
  std::shared_ptr<SavedModelImpl> model;
  std::unique_ptr<ModuleEngine> engine;
};

class ModuleCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "zeroshard-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    path = name;
  }
  void TearDown() override { std::filesystem::remove_all(path); }
  std::string path;
};

TEST_F(ModuleCheckpoint, AResumedRunGoesOnBitByBit) {
  for (const int stage : {0, 2, 3}) {
    TrainingRun run(stage, 1);
    run.train(3);
    run.engine->save(path, R"({"epoch":4})");
    const std::vector<double> expected = run.train(4);
    run.engine->wait_for_checkpoint();

    TrainingRun again(3 - stage, 2);
    again.train(1);
    EXPECT_EQ(again.engine->load(path), R"({"epoch":4})");
    EXPECT_EQ(again.engine->steps(), 3);
    EXPECT_EQ(again.engine->progress().global_samples, 3);
    EXPECT_EQ(again.train(4), expected) << "stage " << stage;
  }
}

TEST_F(ModuleCheckpoint, NothingToLoad) {
  TrainingRun run(1, 1);
  EXPECT_EQ(run.engine->load(path), std::nullopt);
  EXPECT_THROW(run.engine->load(path, {.tag = "global_step9"}), IoError);
}

TEST_F(ModuleCheckpoint, AnErrorInTheBackgroundComesOutAtAStep) {
  TrainingRun run(2, 1);
  run.train(1);
  std::ofstream(path + "/file") << "not a directory";
  run.engine->save(path + "/file");
  int steps = 1;
  EXPECT_THROW(
      {
        for (int i = 0; i < 1000; ++i) {
          ++steps;
          run.train(1);
        }
      },
      IoError);
  EXPECT_EQ(run.engine->steps(), steps);  // the error came after the step was taken and counted
  run.train(1);
  run.engine->save(path);
  run.engine->wait_for_checkpoint();
}

TEST_F(ModuleCheckpoint, GradientsThatNoStepHasUsedAreNotLost) {
  for (const bool through_engine : {true, false}) {
    TrainingRun run(2, 1);
    run.train(1);
    run.engine->save(path);
    run.engine->wait_for_checkpoint();
    run.engine->begin_forward(true);
    const at::Tensor loss = run.engine->call(run.model->blocks->ptr<SavedBlockImpl>(0), at::randn({5, 6})).sum();
    if (through_engine)
      run.engine->backward(loss);
    else
      loss.backward();
    run.engine->save(path + "/between");  // the state after the step
    run.engine->wait_for_checkpoint();
    EXPECT_THROW(run.engine->load(path), StateError);
    run.engine->step();
    EXPECT_NE(run.engine->load(path + "/between"), std::nullopt);
    EXPECT_EQ(run.engine->steps(), 1);
  }
}

TEST_F(ModuleCheckpoint, AnotherOptimizerIsRefused) {
  TrainingRun run(1, 1);
  run.train(1);
  run.engine->save(path);
  run.engine->wait_for_checkpoint();
  TrainingRun lion(1, 2, "Lion");
  try {
    lion.engine->load(path);
    ADD_FAILURE() << "loaded";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("with the optimizer AdamW, this engine has Lion"), std::string::npos);
  }
  lion.train(1);  // nothing was loaded
  LoadOptions weights;
  weights.optimizer = false;
  EXPECT_NE(lion.engine->load(path, weights), std::nullopt);
  lion.train(1);
}

TEST_F(ModuleCheckpoint, ALoadThatFailsInItsCallerIsHalfALoad) {
  TrainingRun run(1, 1);
  run.train(1);
  run.engine->save(path);
  const std::vector<double> expected = run.train(2);
  run.engine->wait_for_checkpoint();
  TrainingRun again(1, 2);
  again.train(1);
  LoadOptions failing;
  failing.finish = [](const LoadedState&) { throw ValueError("the caller's part is wrong"); };
  EXPECT_THROW(again.engine->load(path, failing), ValueError);
  EXPECT_THROW(again.train(1), StateError);
  EXPECT_THROW(again.engine->save(path), StateError);
  EXPECT_THROW(again.engine->step(), StateError);
  EXPECT_NE(again.engine->load(path), std::nullopt);
  EXPECT_EQ(again.train(2), expected);
}

TEST_F(ModuleCheckpoint, ARelativeDirectoryIsThatOfTheCall) {
  TrainingRun run(1, 1);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directories(path + "/elsewhere");
  std::filesystem::current_path(path);
  run.engine->save("run");
  std::filesystem::current_path(path + "/elsewhere");
  run.engine->wait_for_checkpoint();
  std::filesystem::current_path(before);
  LoadOptions strict;
  strict.strict = true;
  EXPECT_NE(run.engine->load(path + "/run", strict), std::nullopt);
}

TEST_F(ModuleCheckpoint, StagingIsInTheLedger) {
  TrainingRun run(3, 1);
  run.engine->save(path);
  run.engine->wait_for_checkpoint();
  int64_t staging = 0;
  for (const MemoryLine& line : run.engine->memory())
    if (line.category == "checkpoint staging") {
      staging = line.measured_peak;
      EXPECT_EQ(line.planned, line.measured_peak);
    }
  EXPECT_GE(staging, 3 * 3 * (36 + 6 + 6 + 6) * 4);  // weights and two moments
}

}  // namespace
}  // namespace zeroshard

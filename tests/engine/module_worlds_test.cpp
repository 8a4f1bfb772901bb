#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm_c10d/gloo_group.h"
#include "file/support.h"
#include "support/comm_world.h"
#include "support/configuration.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/nn.h"

namespace zeroshard {
namespace {

namespace nn = torch::nn;
using ::testing::Each;
using testing::TemporaryDirectory;

struct SplitModelImpl : nn::Module {
  nn::Linear linear = register_module("linear", nn::Linear(6, 6));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(6));
  at::Tensor table = register_buffer("table", at::ones({50}));
};

// A model with its engine, as one rank of a world of threads.
struct TrainingRank {
  TrainingRank(int rank, int world_size, const c10::intrusive_ptr<c10d::Store>& store)
      : group(make_gloo_group(c10::make_intrusive<c10d::PrefixStore>("gather", store), rank, world_size)) {
    const auto other = [&](const char* name) {
      return make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, world_size);
    };
    config = testing::configuration(R"({"optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2},
                                        "zeroshard": {"transport": "process_group"}})",
                                    world_size);
    world = std::make_unique<World>(config.config, at::kCPU, group, other("reduce"), other("checkpoint"));
    model = std::make_shared<SplitModelImpl>();
    engine = std::make_unique<ModuleEngine>(*model, config, *world);
  }
  void train(double key) {
    const at::Tensor x = at::sin(at::arange(30, at::kFloat).view({5, 6}) * key);
    engine->begin_forward(true);
    const at::Tensor y = engine->call(model->norm, engine->call(model->linear, x));
    engine->backward(at::mse_loss(y, x));
    engine->step();
  }

  World::Group group;
  ParsedConfig config;
  std::unique_ptr<World> world;
  std::shared_ptr<SplitModelImpl> model;
  std::unique_ptr<ModuleEngine> engine;
};

std::vector<std::string> run_ranks(int world_size, const std::function<void(TrainingRank&, int rank)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return testing::run_threads(world_size, [&](int rank) {
    TrainingRank training(rank, world_size, store);
    body(training, rank);
    training.world->barrier();
  });
}

TEST(ModuleWorlds, EveryRankGoesOnWithItsOwnBuffers) {
  const TemporaryDirectory root;
  std::vector<at::Tensor> means(2);
  ASSERT_THAT(run_ranks(2,
                        [&](TrainingRank& training, int rank) {
                          training.train(rank + 1);
                          means[size_t(rank)] = training.model->norm->running_mean.clone();
                          training.engine->save(root.path());
                          training.engine->wait_for_checkpoint();
                        }),
              Each(""));
  ASSERT_FALSE(means[0].equal(means[1]));
  std::vector<std::string> buffers;
  for (const StoredTensor& tensor : inspect_checkpoint(root.path()).tensors)
    if (tensor.kind.starts_with("buffer")) buffers.push_back(tensor.name + " " + tensor.kind);
  EXPECT_THAT(buffers, ::testing::UnorderedElementsAre("table buffer", "norm.num_batches_tracked buffer",
                                                       "norm.running_mean buffer", "norm.running_mean buffer@1",
                                                       "norm.running_var buffer", "norm.running_var buffer@1"));
  for (const int world_size : {1, 2, 3}) {
    const auto errors = run_ranks(world_size, [&](TrainingRank& training, int rank) {
      EXPECT_NE(training.engine->load(root.path()), std::nullopt);
      const at::Tensor& expected = means[rank == 1 ? 1 : 0];
      EXPECT_TRUE(training.model->norm->running_mean.equal(expected)) << "rank " << rank << " of " << world_size;
    });
    EXPECT_THAT(errors, Each(""));
  }
}

}  // namespace
}  // namespace zeroshard

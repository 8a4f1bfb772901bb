// A torch::nn model of its own, trained for a few steps at stage 3: own_model [STEPS]
// Whatever the number of ranks, the batch is the same 8 rows.
#include "zeroshard/nn.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "zeroshard/zeroshard.h"

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  nn::Linear up = register_module("up", nn::Linear(16, 64)), down = register_module("down", nn::Linear(64, 16));
  at::Tensor forward(const at::Tensor& x) { return x + down(at::relu(up(x))); }
};

struct ModelImpl : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(8, 16));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  nn::Linear last = register_module("last", nn::Linear(16, 1));
  ModelImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<BlockImpl>());
  }
  at::Tensor forward(zeroshard::ModuleEngine& engine, at::Tensor x) {
    x = engine.call(first, x);
    for (size_t i = 0; i < blocks->size(); ++i) x = engine.call(blocks->ptr<BlockImpl>(i), x);
    // The same for whatever is no plain call of a module's forward:
    return engine.around(*last, [&] { return last(x); });
  }
};

constexpr char kConfig[] = R"({
  "train_batch_size": 8,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {"stage": 3},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}
})";

int train(int steps) {
  zeroshard::ConfigContext context;
  context.world_size = zeroshard::rank_environment().world_size;  // as the launcher says; 1 without one
  const zeroshard::ParsedConfig parsed = zeroshard::parse_config(kConfig, context);
  zeroshard::World world(parsed.config);  // connects the ranks
  torch::manual_seed(1);
  ModelImpl model;
  zeroshard::ModuleEngine engine(model, parsed, world);  // the model's parameters are sharded from here on

  const int64_t rows = parsed.config.micro_batch_size;
  const at::Tensor inputs = at::randn({8, 8}).narrow(0, world.rank() * rows, rows);
  for (int step = 0; step < steps; ++step) {
    engine.begin_forward(/*training=*/true);
    const at::Tensor loss = at::mse_loss(model.forward(engine, inputs), inputs.sum(1, /*keepdim=*/true));
    engine.backward(loss);
    engine.step();
    const double mean = world.mean(loss.item<double>());
    if (world.rank() == 0) std::printf("step %d loss %.6g\n", step, mean);
  }
  return 0;
}

int main(int argc, char** argv) try {
  return train(argc > 1 ? std::stoi(argv[1]) : 2);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

// Trains a small language model on the bytes of FILE (default: this one), sharded as a DeepSpeed configuration says.
// With "sequence_parallel_size" so many ranks share each text:
//   zeroshard run --nproc 2 build/release/examples/cpp/example_train examples/configs/stage3.json [FILE [STEPS]]
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "zeroshard/nn.h"
#include "zeroshard/zeroshard.h"

namespace nn = torch::nn;
constexpr int64_t kLength = 128, kHidden = 128, kHeads = 4, kBlocks = 4;

struct BlockImpl : nn::Module {
  explicit BlockImpl(zeroshard::SequenceGroup sharing) : group(std::move(sharing)) {}
  zeroshard::SequenceGroup group;
  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kHidden})));
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kHidden})));
  nn::Linear qkv = register_module("qkv", nn::Linear(kHidden, 3 * kHidden));
  nn::Linear out = register_module("out", nn::Linear(kHidden, kHidden));
  nn::Linear up = register_module("up", nn::Linear(kHidden, 4 * kHidden));
  nn::Linear down = register_module("down", nn::Linear(4 * kHidden, kHidden));

  // `x` is a piece of the text for all heads. Attention sees the whole text for a part of the heads.
  at::Tensor forward(at::Tensor x) {
    const auto heads = qkv(norm1(x)).view({x.size(0), x.size(1), 3, kHeads, kHidden / kHeads}).permute({2, 0, 3, 1, 4});
    const auto whole = group.exchange({heads[0], heads[1], heads[2]});
    const auto mixed = at::scaled_dot_product_attention(whole[0], whole[1], whole[2], {}, 0, /*is_causal=*/true);
    x = x + out(group.exchange({mixed.transpose(1, 2)}).front().reshape(x.sizes()));
    return x + down(at::gelu(up(norm2(x))));
  }
};

struct ModelImpl : nn::Module {
  nn::Embedding bytes = register_module("bytes", nn::Embedding(256, kHidden));
  nn::Embedding positions = register_module("positions", nn::Embedding(kLength, kHidden));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(kHidden, 256));
  zeroshard::SequenceGroup group;
  explicit ModelImpl(zeroshard::SequenceGroup sharing) : group(std::move(sharing)) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(std::make_shared<BlockImpl>(group));
  }

  // Each unit is called through the engine, which has its parameters whole while it runs.
  at::Tensor loss(zeroshard::ModuleEngine& engine, const at::Tensor& text) {
    const int64_t length = kLength / group.size(), begin = group.rank() * length;
    const auto input = text.narrow(1, begin, length), target = text.narrow(1, begin + 1, length);
    auto x = engine.call(bytes, input) + engine.call(positions, at::arange(begin, begin + length));
    for (size_t i = 0; i < blocks->size(); ++i) x = engine.call(blocks->ptr<BlockImpl>(i), x);
    const auto loss = at::cross_entropy_loss(engine.call(head, x).flatten(0, 1).to(at::kFloat), target.flatten());
    return group.mean(loss, at::full({}, target.numel()));
  }
};

int train(const std::string& config_path, const std::string& text_path, int steps) {
  zeroshard::ConfigContext context;
  context.world_size = zeroshard::rank_environment().world_size;
  const zeroshard::ParsedConfig parsed = zeroshard::load_config(config_path, context);
  const zeroshard::Config& config = parsed.config;
  std::ifstream file(text_path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (int64_t(text.size()) <= kLength) throw zeroshard::ValueError("need a file of more than 128 bytes: " + text_path);
  const auto data = at::from_blob(const_cast<char*>(text.data()), {int64_t(text.size())}, at::kByte).to(at::kLong);

  zeroshard::World world(config);
  torch::manual_seed(0);
  const zeroshard::SequenceGroup group(world.sequence());
  const auto model = std::make_shared<ModelImpl>(group);
  zeroshard::ModuleEngine engine(*model, parsed, world);
  int64_t sample = world.rank() / group.size();  // samples are dealt in turn to the groups of ranks that share them
  for (int step = 0; step < steps; ++step) {
    double loss = 0;
    for (int64_t micro = 0; micro < config.grad_accumulation_steps; ++micro) {
      std::vector<at::Tensor> batch;
      for (int64_t i = 0; i < config.micro_batch_size; ++i, sample += world.world_size() / group.size())
        batch.push_back(data.narrow(0, sample * 7919 % (data.numel() - kLength), kLength + 1));
      engine.begin_forward(/*training=*/true);
      const at::Tensor mean = model->loss(engine, at::stack(batch));
      engine.backward(mean);
      loss += mean.item<double>() / double(config.grad_accumulation_steps);
    }
    const zeroshard::StepResult result = engine.step();
    loss = world.mean(loss);
    if (world.rank() == 0) std::printf("step %d loss %.9g grad_norm %.9g\n", step, loss, result.grad_norm);
  }
  if (world.rank() != 0) return 0;
  for (const auto& [category, tier, planned, measured] : engine.memory())
    std::printf("%s, %s: planned %lld bytes, peak %lld\n", category.c_str(), tier.c_str(), (long long)planned,
                (long long)measured);
  return 0;
}

int main(int argc, char** argv) try {
  if (argc < 2) throw zeroshard::ValueError("usage: example_train CONFIG.json [FILE [STEPS]]");
  return train(argv[1], argc > 2 ? argv[2] : "examples/cpp/train.cpp", argc > 3 ? std::stoi(argv[3]) : 30);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

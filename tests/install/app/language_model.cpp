// A decoder from the text of a config.json, its initial values drawn straight into the shards, trained on a file of
// tokens that this program writes: language_model FILE
#include "zeroshard/causal_lm.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "zeroshard/data.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/token_file.h"

namespace {

constexpr char kModel[] = R"({
  "model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": true
})";
constexpr char kTraining[] = R"({
  "train_batch_size": 4,
  "gradient_accumulation_steps": 1,
  "zero_optimization": {"stage": 3},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}
})";
constexpr int64_t kLength = 16;

// The parts of a model run through the engine, which has their parameters whole meanwhile.
class EngineRunner : public zeroshard::PartRunner {
 public:
  explicit EngineRunner(zeroshard::ModuleEngine& engine) : engine_(engine) {}
  at::Tensor run(const torch::nn::Module& part, const at::Tensor& input, const Forward& forward) const override {
    return engine_.around(part, [&] { return forward(input); });
  }

 private:
  zeroshard::ModuleEngine& engine_;
};

void write_tokens(const std::string& path) {
  zeroshard::TokenFileWriter writer(path, {.vocab_size = 50});
  for (int32_t document = 0; document < 8; ++document) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < kLength + 1; ++i) ids.push_back((document * 7 + i * 3) % 50);
    writer.append(ids);
  }
  writer.finish();
}

at::Tensor ids_of(const std::vector<int32_t>& row) {
  const at::Tensor ids = at::empty({1, static_cast<int64_t>(row.size())}, at::kLong);
  std::copy(row.begin(), row.end(), ids.mutable_data_ptr<int64_t>());
  return ids;
}

int train(const std::string& path) {
  zeroshard::ConfigContext context;
  context.world_size = zeroshard::rank_environment().world_size;
  const zeroshard::ParsedConfig parsed = zeroshard::parse_config(kTraining, context);
  zeroshard::World world(parsed.config);
  if (world.rank() == 0) write_tokens(path);
  world.barrier();
  zeroshard::Dataset dataset({path}, {.length = kLength, .seed = 3, .vocab_size = 50});
  const auto model = zeroshard::make_causal_lm(kModel, "kModel");
  zeroshard::ModuleEngine engine(*model, parsed, world, zeroshard::initial_values(*model, /*seed=*/5));
  const EngineRunner runner(engine);
  for (int64_t step = 0; step < 2; ++step) {
    at::Tensor loss;
    engine.begin_forward(/*training=*/true);
    for (int64_t i = 0; i < parsed.config.micro_batch_size; ++i) {
      const zeroshard::TokenRow row = dataset.row(step * 4 + world.rank() * parsed.config.micro_batch_size + i);
      zeroshard::TokenBatch batch;
      batch.ids = ids_of(row.ids);
      batch.documents = ids_of(row.documents);
      const at::Tensor logits = model->logits(batch, runner);
      const at::Tensor of_row = at::cross_entropy_loss(logits.flatten(0, 1), ids_of(row.targets).flatten());
      loss = loss.defined() ? loss + of_row : of_row;
    }
    loss = loss / parsed.config.micro_batch_size;
    engine.backward(loss);
    engine.step();
    const double mean = world.mean(loss.item<double>());
    if (world.rank() == 0) std::printf("step %d loss %.6g\n", static_cast<int>(step), mean);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  return train(argv[1]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

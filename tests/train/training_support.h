#pragma once
#include <atomic>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "comm_c10d/gloo_group.h"
#include "file/support.h"
#include "support/comm_world.h"
#include "support/random.h"
#include "zeroshard/token_file.h"
#include "zeroshard/train.h"
#include "zeroshard/world.h"

// Runs of zeroshard::train on a small model, with threads for ranks.
namespace zeroshard::testing {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A directory with a small model's configuration and tokens in documents of many lengths.
struct Material {
  // `more` of its configuration: ", \"name\": value".
  explicit Material(const std::string& more = "") {
    std::ofstream(root.path() + "/config.json") << R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 32,
      "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
      "initializer_range": 0.05, "num_hidden_layers": 3, "tie_word_embeddings": true)"
                                                << more << "}";
    TokenFileOptions options;
    options.vocab_size = 61;
    TokenFileWriter writer(tokens(), options);
    SeededRandom random(5);
    for (int document = 0; document < 40; ++document) {
      std::vector<int32_t> ids(1 + random() % 60);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % 61);
      writer.append(ids);
    }
    writer.finish();
  }
  std::string tokens() const { return root.path() + "/data.tokens"; }

  TemporaryDirectory root;
};

struct Variant {
  int world_size = 1, stage = 0, accumulation = 1;
  std::string more = "";  // of "train": ", \"name\": value"
  int64_t steps = 4;
};

// What a run told.
struct Told final : TrainObserver {
  void started(int64_t step, int64_t of) override {
    first = step;
    total = of;
    if (after_step) after_step(step);
  }
  void stepped(const TrainStep& step) override {
    losses.push_back(step.loss);
    if (after_step) after_step(step.step);
  }
  void evaluated(const Evaluation& evaluation) override {
    if (before_evaluation_is_kept) before_evaluation_is_kept(evaluation.step);
    evaluations.push_back(evaluation.loss);
    evaluated_at.push_back(evaluation.step);
  }
  void sampled(int64_t, const std::string& text) override { samples.push_back(text); }

  int64_t first = -1, total = -1;
  std::vector<double> losses, evaluations;
  std::vector<int64_t> evaluated_at;  // steps
  std::vector<std::string> samples;
  std::function<void(int64_t step)> after_step;  // and before the first
  std::function<void(int64_t step)> before_evaluation_is_kept;
};

struct Outcome {
  std::vector<std::string> errors;  // of each rank
  std::vector<TrainEnd> ends;
  std::vector<Told> told;
};

inline std::string config_of(const Material& material, const std::string& output, const Variant& variant) {
  std::ostringstream json;
  json << R"({"train_batch_size": 12, "gradient_accumulation_steps": )" << variant.accumulation
       << R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "gradient_clipping": 1.0,
      "zero_optimization": {"stage": )"
       << variant.stage << R"(}, "zeroshard": {"transport": "process_group"}, "train": {"model": ")"
       << material.root.path() << R"(", "from_scratch": true, "seed": 3, "output": ")" << output << R"(", "steps": )"
       << variant.steps << R"(, "data": {"train": [")" << material.tokens()
       << R"("], "length": 16, "validation_share": 0.2})" << variant.more << "}}";
  return json.str();
}

// Makes the World of a rank.
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using MakeWorld = std::function<std::unique_ptr<World>(const Config& config, const StorePtr& store, int rank)>;

inline std::unique_ptr<World> world_on_host(const Config& config, const StorePtr& store, int rank) {
  const auto group = [&](const char* name) {
    return make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, config.world_size);
  };
  return std::make_unique<World>(config, at::kCPU, group("gather"), group("reduce"), group("checkpoint"));
}

// `prepare` is called with what each rank will tell to.
inline Outcome run_prepared(const std::string& json, int world_size, const std::atomic<bool>& stop,
                            const std::function<void(Told&)>& prepare, const MakeWorld& make_world = world_on_host) {
  Outcome outcome;
  outcome.ends.resize(size_t(world_size));
  outcome.told.resize(size_t(world_size));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  outcome.errors = run_threads(world_size, [&](int rank) {
    ConfigContext context;
    context.world_size = world_size;
    const TrainConfig config = parse_train_config(json, context, "config");
    const std::unique_ptr<World> world = make_world(config.engine.config, store, rank);
    prepare(outcome.told[size_t(rank)]);
    outcome.ends[size_t(rank)] = train(config, *world, outcome.told[size_t(rank)], stop);
    world->barrier();
  });
  return outcome;
}

// On each rank `after_step` is called before the first step and after each.
inline Outcome run(const std::string& json, int world_size, const std::atomic<bool>& stop = false,
                   const std::function<void(int64_t step)>& after_step = {},
                   const MakeWorld& make_world = world_on_host) {
  return run_prepared(
      json, world_size, stop, [&](Told& told) { told.after_step = after_step; }, make_world);
}

inline Outcome run(const Material& material, const std::string& output, const Variant& variant) {
  return run(config_of(material, output, variant), variant.world_size);
}

}  // namespace zeroshard::testing

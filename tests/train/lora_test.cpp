#include "zeroshard/lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "layout/shard_layout.h"
#include "train/lora_export.h"
#include "train/training_support.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::config_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Material;
using testing::message_of;
using testing::Outcome;
using testing::read_file;
using testing::run;
using testing::TemporaryDirectory;
using testing::Variant;

constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "num_hidden_layers": 2})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4,
  "n_positions": 16})";

LoraOptions on(std::vector<std::string> targets) {
  LoraOptions options;
  options.target_modules = std::move(targets);
  return options;
}

// Paths of what has adapters.
std::set<std::string> adapted(const char* config, const LoraOptions& options) {
  const auto model = make_causal_lm(config, "config.json");
  add_lora(*model, options);
  std::set<std::string> paths;
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(item.value().requires_grad(), model->is_added(item.key())) << item.key();
    if (const size_t at = item.key().find(".lora_A."); at != std::string::npos) paths.insert(item.key().substr(0, at));
  }
  return paths;
}

TEST(Lora, TargetsAreMatchedAsPeftDoes) {
  const std::set<std::string> defaults = {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                                          "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"};
  EXPECT_EQ(adapted(kLlama, {}), defaults);
  EXPECT_EQ(adapted(kLlama, on({"v_proj", "self_attn.q_proj", "q_proj"})), defaults);
  EXPECT_THAT(adapted(kLlama, on({"1.mlp.up_proj"})), ElementsAre("model.layers.1.mlp.up_proj"));
  EXPECT_THAT(adapted(kLlama, on({"lm_head"})), ElementsAre("lm_head"));
  EXPECT_EQ(adapted(kLlama, on({"all-linear"})).size(), 14u);
  EXPECT_FALSE(adapted(kLlama, on({"all-linear"})).contains("lm_head"));
  EXPECT_THAT(adapted(kGpt2, {}), ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"));
  EXPECT_EQ(adapted(kGpt2, on({"c_proj"})).size(), 4u) << "those of attention and of the feed-forward";
}

TEST(Lora, WrongOptionsAreNamed) {
  const auto error = [](const char* config, const LoraOptions& options) {
    return message_of<ValueError>([&] { add_lora(*make_causal_lm(config, "config.json"), options); });
  };
  EXPECT_THAT(error(kLlama, on({"q_proj", "proj"})), HasSubstr("target_modules has 'proj'"));
  EXPECT_THAT(error(kLlama, on({"embed_tokens"})), HasSubstr("down_proj, gate_proj, k_proj, lm_head, o_proj"));
  EXPECT_THAT(error(kGpt2, on({"lm_head"})), HasSubstr("that of 'transformer.wte.weight' as well"));
  LoraOptions rank;
  rank.r = 0;
  EXPECT_THAT(error(kLlama, rank), HasSubstr("r is 0"));
  LoraOptions dropout;
  dropout.dropout = 1;
  EXPECT_THAT(error(kLlama, dropout), HasSubstr("dropout is 1"));
  const auto model = make_causal_lm(kLlama, "config.json");
  add_lora(*model, {});
  EXPECT_THAT(message_of<ValueError>([&] { add_lora(*model, {}); }), HasSubstr("has adapters already"));
}

TEST(Lora, NewAdaptersChangeNothingAndAreDrawnAsPeftDoes) {
  const at::NoGradGuard no_grad;
  for (const char* config : {kLlama, kGpt2}) {
    const auto plain = make_causal_lm(config, "config.json"), model = make_causal_lm(config, "config.json");
    LoraOptions options = on({"all-linear"});
    options.r = 64;
    options.dropout = 0.5;
    add_lora(*model, options);
    for (const auto& each : {plain, model}) {
      allocate(*each);
      each->initialize(3);
      each->eval();
    }
    const TokenBatch batch{at::randint(50, {2, 9}, at::kLong), {}, {}};
    EXPECT_TRUE(model->logits(batch).equal(plain->logits(batch)));
    const auto parameters = model->named_parameters();
    for (const auto& item : parameters) {
      if (!model->is_added(item.key())) continue;
      if (item.key().find(".lora_B.") != std::string::npos) {
        EXPECT_TRUE(item.value().eq(0).all().item<bool>()) << item.key();
        continue;
      }
      const double bound = 1 / std::sqrt(static_cast<double>(item.value().size(1)));
      EXPECT_LE(item.value().abs().max().item<double>(), bound) << item.key();
      EXPECT_GT(item.value().abs().max().item<double>(), 0.98 * bound) << item.key();
      EXPECT_NEAR(item.value().std().item<double>(), bound / std::sqrt(3.0), 0.03 * bound) << item.key();
    }
  }
}

TEST(Lora, DropoutIsForTrainingAlone) {
  const auto model = make_causal_lm(kLlama, "config.json");
  LoraOptions options;
  options.dropout = 0.5;
  add_lora(*model, options);
  allocate(*model);
  model->initialize(3);
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters())
    if (item.key().ends_with("lora_B.weight")) item.value().normal_();
  const TokenBatch batch{at::randint(50, {2, 9}, at::kLong), {}, {}};
  model->eval();
  EXPECT_TRUE(model->logits(batch).equal(model->logits(batch)));
  model->train();
  EXPECT_FALSE(model->logits(batch).equal(model->logits(batch)));
}

// Pieces that begin and end anywhere in a weight, kept in either order.
TEST(Lora, MergesAnyStretchOfAWeight) {
  for (const bool transposed : {false, true}) {
    const auto model = make_causal_lm(transposed ? kGpt2 : kLlama, "config.json");
    LoraOptions options = on({transposed ? "c_fc" : "up_proj"});
    options.r = 3;
    options.alpha = 5;
    options.use_rslora = true;
    add_lora(*model, options);
    const std::string path = transposed ? "transformer.h.1.mlp.c_fc" : "model.layers.1.mlp.up_proj";
    const int64_t in = 32, out = transposed ? 128 : 48;
    const at::Tensor a = at::randn({3, in}), b = at::randn({out, 3});
    const ExportOptions merged = merged_weights(*model);
    EXPECT_EQ(merged.rename(path + ".weight"), path + ".weight");
    EXPECT_EQ(merged.rename(path + ".lora_A.weight"), "");
    const ExportOptions::Read read = [&](const std::string& name, int64_t begin, int64_t end, float* to) {
      ASSERT_TRUE(name == path + ".lora_A.weight" || name == path + ".lora_B.weight") << name;
      const at::Tensor& from = name.find("lora_A") != std::string::npos ? a : b;
      std::copy(from.const_data_ptr<float>() + begin, from.const_data_ptr<float>() + end, to);
    };
    const at::Tensor change = at::mm(b, a) * (5 / std::sqrt(3.0));
    const at::Tensor expected = 2 + (transposed ? change.t() : change).contiguous();
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, in * out}, {5, 6}, {31, 130}, {64, 96}, {7, 7}}) {
      std::vector<float> values(size_t(end - begin), 2.0F);
      merged.change(path + ".weight", begin, end, values.data(), read);
      for (int64_t i = begin; i < end; ++i)
        ASSERT_NEAR(values[size_t(i - begin)], expected.const_data_ptr<float>()[i], 1e-5) << i;
    }
    std::vector<float> other(4, 2.0F);
    merged.change(path + ".bias", 0, 4, other.data(), read);
    EXPECT_THAT(other, Each(2.0F));
  }
}

// -- runs ------------------------------------------------------------------------------------------------------------

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

// A small model that has learned a little, and runs that adapt it.
struct Base {
  Base() {
    const Outcome outcome = run(material, folder.path(), {1, 0, 1, "", 2});
    EXPECT_THAT(outcome.errors, Each(""));
  }
  std::string config(const std::string& output, const std::string& lora, Variant variant = {}) const {
    variant.more += ", \"lora\": " + lora;
    const std::string json = config_of(material, output, variant);
    return replaced(replaced(json, material.root.path(), folder.path()), "\"from_scratch\": true",
                    "\"from_scratch\": false");
  }
  Outcome adapt(const std::string& output, const std::string& lora, const Variant& variant = {}) const {
    return run(config(output, lora, variant), variant.world_size);
  }

  Material material;
  TemporaryDirectory folder;
};

// The model in a run's checkpoint, without its adapters.
std::map<std::string, at::Tensor> base_of(const std::string& output, const Base& base) {
  const TemporaryDirectory folder;
  ExportOptions options;
  options.rename = [](const std::string& name) { return name.find(".lora_") == name.npos ? name : std::string(); };
  export_weights(output + "/checkpoints", folder.path(), options);
  std::ofstream(folder.path() + "/config.json") << read_file(base.folder.path() + "/config.json");
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : load_causal_lm(folder.path())->named_parameters()) parameters[item.key()] = item.value();
  return parameters;
}

TEST(LoraRun, StagesAndRecomputationGiveTheSameAdaptersAndLeaveTheRest) {
  const Base base;
  const auto before = load_causal_lm(base.folder.path())->named_parameters();
  for (const int world_size : {1, 3}) {
    // Ranks that are threads draw from one generator: which numbers each gets is chance.
    const std::string dropout = world_size == 1 ? R"(, "dropout": 0.1})" : "}";
    const std::string lora = R"({"r": 4, "target_modules": ["q_proj", "mlp.down_proj"])" + dropout;
    std::string expected;
    for (const int stage : {0, 1, 2, 3}) {
      for (const char* more : {"", R"(, "activation_checkpointing": "full")"}) {
        const TemporaryDirectory output;
        const Outcome outcome = base.adapt(output.path(), lora, {world_size, stage, 2, more});
        ASSERT_THAT(outcome.errors, Each(""));
        const std::string adapter = read_file(output.path() + "/adapter_model.safetensors");
        ASSERT_GT(adapter.size(), 1000u);
        if (expected.empty()) expected = adapter;
        EXPECT_TRUE(adapter == expected) << "stage " << stage << more << " with " << world_size << " ranks";
        EXPECT_FALSE(std::filesystem::exists(output.path() + "/model.safetensors"));
        for (const auto& [name, value] : base_of(output.path(), base)) EXPECT_TRUE(value.equal(before[name])) << name;
        const auto trained = load_causal_lm(base.folder.path(), output.path());
        for (const auto& item : trained->named_parameters()) {
          const bool was_zero = item.key().ends_with("lora_B.weight");
          EXPECT_TRUE(!was_zero || item.value().abs().max().item<double>() > 0) << item.key();
        }
      }
    }
  }
}

TEST(LoraRun, AdaptersAloneHaveOptimizerStates) {
  const Base base;
  const TemporaryDirectory output;
  ASSERT_THAT(base.adapt(output.path(), R"({"r": 2})", {2, 3}).errors, Each(""));
  int64_t states = 0;
  for (const StoredTensor& tensor : inspect_checkpoint(output.path() + "/checkpoints").tensors) {
    const bool of_adapter = tensor.name.find(".lora_") != std::string::npos;
    EXPECT_EQ(tensor.trainable, of_adapter) << tensor.name;
    EXPECT_TRUE(of_adapter || tensor.kind == "weight") << tensor.kind << " of " << tensor.name;
    states += tensor.kind != "weight";
  }
  EXPECT_EQ(states, 2 * 3 * 2 * 2) << "two moments of A and B of two modules of three layers";
}

TEST(LoraRun, MemoryForTrainingIsThatOfTheAdapters) {
  const Base base;
  const auto moments = [&](const std::string& more) {
    ConfigContext context;
    const std::string json = replaced(base.config("unused", "{}"), ", \"lora\": {}", more);
    const TrainConfig config = parse_train_config(json, context, "config");
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto group = [&](const char* name) {
      return make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store), 0, 1);
    };
    World world(config.engine.config, at::kCPU, group("gather"), group("reduce"), group("checkpoint"));
    const auto model = make_causal_lm_of(base.folder.path());
    if (config.train.lora) add_lora(*model, *config.train.lora);
    const ModuleEngine engine(*model, config.engine, world, initial_values(*model, 1));
    std::map<std::string, int64_t> bytes;
    for (const MemoryLine& line : engine.memory()) {
      EXPECT_EQ(line.planned, line.measured_peak) << line.category;
      bytes[line.category] = line.planned;
    }
    return bytes;
  };
  auto all = moments(""), adapters = moments(R"(, "lora": {"r": 1})");
  ASSERT_GT(all["moments"], 0) << ::testing::PrintToString(all);
  // The adapters of a layer fit into one block.
  EXPECT_EQ(adapters["moments"], 2 * 3 * kBlockNumel * 4);
  EXPECT_EQ(adapters["gradients"], 3 * kBlockNumel * 4);
  EXPECT_GT(all["moments"], 8 * adapters["moments"]);
  EXPECT_GT(all["gradients"], 8 * adapters["gradients"]);
}

TEST(LoraRun, TheMergedModelIsTheAdaptedOne) {
  const Base base;
  const std::string lora = R"({"r": 3, "alpha": 7, "target_modules": "all-linear", "use_rslora": true, "merge": )";
  const TemporaryDirectory apart, merged;
  ASSERT_THAT(base.adapt(apart.path(), lora + "false}").errors, Each(""));
  ASSERT_THAT(base.adapt(merged.path(), lora + "true}").errors, Each(""));
  EXPECT_FALSE(std::filesystem::exists(merged.path() + "/adapter_config.json"));
  const at::NoGradGuard no_grad;
  const TokenBatch batch{at::randint(61, {2, 20}, at::kLong), {}, {}};
  const auto logits = [&](const std::shared_ptr<CausalLM>& model) {
    model->eval();
    return model->logits(batch);
  };
  const at::Tensor expected = logits(load_causal_lm(base.folder.path(), apart.path()));
  EXPECT_LT((logits(load_causal_lm(merged.path())) - expected).abs().max().item<double>(), 1e-5);
  EXPECT_GT((logits(load_causal_lm(base.folder.path())) - expected).abs().max().item<double>(), 1e-2);
}

TEST(LoraRun, GoesOnFromAnAdapterOrACheckpoint) {
  const Base base;
  const TemporaryDirectory first, second;
  const std::string own = R"("r": 4, "alpha": 6, "target_modules": ["k_proj"])";
  ASSERT_THAT(base.adapt(first.path(), "{" + own + "}", {2, 2}).errors, Each(""));
  const std::string again = "{\"adapter\": \"" + first.path() + "\"";
  const std::string json = replaced(base.config(second.path(), again + ", \"r\": 4}", {1, 3}), "0.01}", "0}");
  ASSERT_THAT(run(json, 1).errors, Each(""));
  EXPECT_TRUE(read_file(first.path() + "/adapter_model.safetensors") ==
              read_file(second.path() + "/adapter_model.safetensors"));
  const auto error = [&](const std::string& lora) { return base.adapt(second.path(), lora).errors.front(); };
  EXPECT_THAT(error(again + ", \"r\": 8}"), HasSubstr("train.lora.r = 8: the adapter in"));
  EXPECT_THAT(error(again + ", \"alpha\": 8}"), HasSubstr("train.lora.alpha = 8: the adapter in"));
  EXPECT_THAT(error(again + ", \"use_rslora\": true}"), HasSubstr("has false"));
  EXPECT_THAT(error(again + ", \"target_modules\": [\"q_proj\"]}"), HasSubstr("has [\"k_proj\"]"));
  // A checkpoint is of adapters of one rank and one scale.
  const auto resumed = [&](const std::string& lora) { return base.adapt(first.path(), lora, {2, 2, 1, "", 6}); };
  EXPECT_THAT(resumed(replaced("{" + own + "}", "6", "7")).errors, Each(HasSubstr("made with adapters of scale 1.5")));
  EXPECT_THAT(resumed(replaced("{" + own + "}", "4, \"alpha\": 6", "2, \"alpha\": 3")).errors,
              Each(HasSubstr("lora_A.weight")));
  const Outcome outcome = resumed("{" + own + "}");
  ASSERT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.told[0].first, 4);
}

TEST(LoraRun, WrongConfigurationsAreNamed) {
  const Base base;
  const TemporaryDirectory output;
  const auto error = [&](const std::string& lora, const std::string& more = "") {
    return base.adapt(output.path(), lora, {1, 0, 1, more, 1}).errors.front();
  };
  EXPECT_THAT(error(R"({"rank": 4})"), HasSubstr("train.lora.rank"));
  EXPECT_THAT(error(R"({"r": 0})"), HasSubstr("train.lora.r = 0"));
  EXPECT_THAT(error(R"({"r": 70000})"), HasSubstr("train.lora.r is 70000"));
  EXPECT_THAT(error(R"({"alpha": 0})"), HasSubstr("train.lora.alpha = 0"));
  EXPECT_THAT(error(R"({"dropout": 1})"), HasSubstr("train.lora.dropout = 1"));
  EXPECT_THAT(error(R"({"target_modules": []})"), HasSubstr("train.lora.target_modules = []"));
  EXPECT_THAT(error(R"({"target_modules": ["c_attn"]})"), HasSubstr("train.lora.target_modules has 'c_attn'"));
  EXPECT_THAT(error(R"({"adapter": "/nowhere"})"), HasSubstr("/nowhere/adapter_config.json"));
  EXPECT_THAT(error("{}", R"(, "freeze": ["model."])"), HasSubstr("train.freeze"));
  const std::string scratch =
      replaced(base.config(output.path(), "{}"), "\"from_scratch\": false", "\"from_scratch\": true");
  EXPECT_THAT(run(scratch, 1).errors, Each(HasSubstr("train.from_scratch")));
}

// -- adapter_config.json
// -----------------------------------------------------------------------------------------------

TEST(LoraConfig, WhatIsNotSupportedIsNamed) {
  const TemporaryDirectory folder;
  const nlohmann::json plain = {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}};
  const auto with = [&](const nlohmann::json& change) {
    nlohmann::json config = plain;
    config.update(change);
    std::ofstream(folder.path() + "/adapter_config.json") << config;
    return message_of<ValueError>([&] { read_lora_options(folder.path()); });
  };
  EXPECT_EQ(with(nlohmann::json::object()), "");
  EXPECT_EQ(with({{"rank_pattern", nlohmann::json::object()},
                  {"modules_to_save", nullptr},
                  {"new_feature", nullptr},
                  {"exclude_modules", nlohmann::json::array()}}),
            "");
  EXPECT_EQ(with({{"init_lora_weights", "gaussian"}, {"lora_dropout", 0.25}, {"use_rslora", true}}), "");
  const LoraOptions options = read_lora_options(folder.path());
  EXPECT_EQ(options.r, 4);
  EXPECT_EQ(options.dropout, 0.25);
  EXPECT_EQ(options.scale(), 4);
  const std::vector<std::pair<const char*, nlohmann::json>> wrong = {
      {"peft_type", "LOHA"},
      {"task_type", "SEQ_CLS"},
      {"bias", "all"},
      {"use_dora", true},
      {"lora_bias", true},
      {"modules_to_save", {"lm_head"}},
      {"rank_pattern", {{"q_proj", 2}}},
      {"alpha_pattern", {{"q_proj", 2}}},
      {"init_lora_weights", "pissa"},
      {"layers_to_transform", {1}},
      {"exclude_modules", {"k_proj"}},
      {"target_parameters", {"mlp.experts.down_proj"}},
      {"new_feature", 3},
      {"r", "4"},
      {"target_modules", nullptr},
  };
  for (const auto& [name, value] : wrong) {
    const std::string message = with({{name, value}});
    EXPECT_THAT(message, HasSubstr("adapter_config.json: " + std::string(name))) << name;
    EXPECT_THAT(message, HasSubstr(value.is_null() ? "" : value.dump())) << name;
  }
  std::ofstream(folder.path() + "/adapter_config.json") << "{";
  EXPECT_THAT(message_of<ValueError>([&] { read_lora_options(folder.path()); }), HasSubstr("is not JSON"));
}

}  // namespace
}  // namespace zeroshard

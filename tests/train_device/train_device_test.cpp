// Runs of zeroshard::train and Generator on simulated devices, beside the same on the CPU.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/accelerator/device.h"
#include "support/accelerator/group.h"
#include "support/accelerator/kernels.h"
#include "support/accelerator/memory.h"
#include "support/release.h"
#include "train/training_support.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/generate.h"
#include "zeroshard/lora.h"

namespace zeroshard::accelerator {
namespace {

using testing::config_of;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::Material;
using testing::Outcome;
using testing::read_file;
using testing::StorePtr;
using testing::TemporaryDirectory;
using testing::Variant;

// LibTorch attends and normalizes on a device by other operations than on the CPU, and so rounds otherwise.
constexpr double kRounding = 2e-5;

constexpr const char* kLlama = "llama";
constexpr const char* kGpt2 = "gpt2";
constexpr const char* kMixtral = "mixtral";

const std::map<std::string, std::string>& configs() {
  static const auto& all = *new std::map<std::string, std::string>{
      {kLlama, ""},
      {kGpt2, R"({"model_type": "gpt2", "vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32,
        "initializer_range": 0.05, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})"},
      {kMixtral, R"({"model_type": "mixtral", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.05,
        "num_hidden_layers": 3, "num_local_experts": 4, "num_experts_per_tok": 2})"},
  };
  return all;
}

// The tokens of `material`, and a model's configuration.
void write_config(const Material& material, const std::string& model) {
  if (const std::string& config = configs().at(model); !config.empty())
    std::ofstream(material.root.path() + "/config.json") << config;
}

std::unique_ptr<World> world_on_device(const Config& config, const StorePtr& store, int rank) {
  set_current_device(rank);
  const auto prefixed = [&](const char* name) { return c10::make_intrusive<c10d::PrefixStore>(name, store); };
  const auto group = [&](const char* name) { return make_group(prefixed(name), rank, config.world_size, rank); };
  return std::make_unique<World>(config, device(rank), group("gather"), group("reduce"),
                                 make_gloo_group(prefixed("checkpoint"), rank, config.world_size));
}

Outcome run_on_devices(const std::string& json, int world_size, const std::atomic<bool>& stop = false,
                       const std::function<void(int64_t step)>& after_step = {}) {
  return testing::run(json, world_size, stop, after_step, world_on_device);
}

class OnDevice : public ::testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override {
    start();
    use_own_kernels(true);
    Streams::get().set_schedule(GetParam(), /*seed=*/3);
    Streams::get().races().forget();
  }
  void TearDown() override {
    for (int i = 0; i < kDevices; ++i) Streams::get().wait_for_device(i);
    EXPECT_EQ(Streams::get().races().found(), std::vector<std::string>{});
    EXPECT_EQ(operators_that_waited(), std::vector<std::string>{});
    Streams::get().set_schedule(Schedule::kEager);
  }
};

std::vector<Schedule> schedules() {
  if (zeroshard::testing::release()) return {Schedule::kEager, Schedule::kLate, Schedule::kLazy};
  return {Schedule::kEager, Schedule::kLazy};
}

INSTANTIATE_TEST_SUITE_P(Schedules, OnDevice, ::testing::ValuesIn(schedules()));

double difference(const std::string& one, const std::string& other) {
  const auto a = load_causal_lm(one)->named_parameters(), b = load_causal_lm(other)->named_parameters();
  double most = 0;
  for (const auto& item : a) {
    const at::NoGradGuard no_grad;
    most = std::max(most, (item.value() - b[item.key()]).abs().max().item<double>());
  }
  return most;
}

void expect_near(const std::vector<double>& values, const std::vector<double>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], kRounding) << i;
}

TEST_P(OnDevice, ModelsTrainAsOnTheCpu) {
  for (const auto& [model, config] : configs()) {
    const Material material;
    write_config(material, model);
    for (const int world_size : {1, 2}) {
      const TemporaryDirectory host;
      const Outcome expected = testing::run(material, host.path(), {world_size, 0, 2, ""});
      ASSERT_THAT(expected.errors, Each(""));
      std::string weights;
      for (const int stage : {0, 3}) {
        SCOPED_TRACE(model + ", stage " + std::to_string(stage) + ", ranks " + std::to_string(world_size));
        const TemporaryDirectory output;
        const Variant variant{world_size, stage, 2, ""};
        const Outcome outcome = run_on_devices(config_of(material, output.path(), variant), world_size);
        ASSERT_THAT(outcome.errors, Each(""));
        for (const testing::Told& told : outcome.told) {
          expect_near(told.losses, expected.told[0].losses);
          expect_near(told.evaluations, expected.told[0].evaluations);
          EXPECT_EQ(told.losses, outcome.told[0].losses);
        }
        EXPECT_LT(difference(output.path(), host.path()), 1e-3);  // Adam makes much of small gradients
        const std::string now = read_file(output.path() + "/model.safetensors");
        if (weights.empty()) weights = now;
        EXPECT_TRUE(now == weights) << "stages differ";
      }
    }
  }
}

// GPT-2 has no operation that the CPU does otherwise, but for its fused attention.
TEST_P(OnDevice, WhereAttentionIsTheSameTheDirectoryHasTheCpusBytes) {
  const Material material;
  write_config(material, kGpt2);
  const bool flash = at::globalContext().userEnabledFlashSDP();
  at::globalContext().setSDPUseFlash(false);
  for (const int world_size : {1, 2}) {
    const TemporaryDirectory host, output;
    const Variant variant{world_size, 3, 2, ""};
    const Outcome expected = testing::run(material, host.path(), variant);
    const Outcome outcome = run_on_devices(config_of(material, output.path(), variant), world_size);
    EXPECT_THAT(expected.errors, Each(""));
    EXPECT_THAT(outcome.errors, Each(""));
    EXPECT_EQ(outcome.told[0].losses, expected.told[0].losses);
    EXPECT_EQ(outcome.told[0].evaluations, expected.told[0].evaluations);
    for (const char* file : {"config.json", "generation_config.json", "model.safetensors"})
      EXPECT_TRUE(read_file(output.path() + "/" + file) == read_file(host.path() + "/" + file)) << file;
  }
  at::globalContext().setSDPUseFlash(flash);
}

TEST_P(OnDevice, RecomputationAndHalfPrecisionTrain) {
  const Material material;
  for (const char* precision : {"", R"("bf16": {"enabled": true}, )"}) {
    std::vector<std::vector<double>> losses;
    for (const char* more : {"", R"(, "activation_checkpointing": "full")"}) {
      const TemporaryDirectory output;
      std::string json = config_of(material, output.path(), {2, 3, 1, more});
      json.insert(json.find("\"train_batch_size\""), precision);
      const Outcome outcome = run_on_devices(json, 2);
      ASSERT_THAT(outcome.errors, Each("")) << precision;
      losses.push_back(outcome.told[0].losses);
    }
    EXPECT_EQ(losses[0], losses[1]) << precision;
  }
}

TEST_P(OnDevice, AnInterruptedRunGoesOnWhereItWas) {
  const Material material;
  const TemporaryDirectory whole_output, output;
  const Outcome whole = run_on_devices(config_of(material, whole_output.path(), {2, 3, 1, "", 5}), 2);
  ASSERT_THAT(whole.errors, Each(""));
  const std::string json = config_of(material, output.path(), {2, 3, 1, "", 5});
  std::atomic<bool> stop = false;
  const Outcome cut = run_on_devices(json, 2, stop, [&](int64_t step) { stop = stop || step == 2; });
  ASSERT_THAT(cut.errors, Each(""));
  EXPECT_THAT(cut.ends, Each(TrainEnd::kInterrupted));
  const Outcome rest = run_on_devices(json, 2);
  ASSERT_THAT(rest.errors, Each(""));
  ASSERT_EQ(rest.told[0].first, 3);
  EXPECT_EQ(rest.told[0].losses, std::vector<double>(whole.told[0].losses.begin() + 3, whole.told[0].losses.end()));
  EXPECT_TRUE(read_file(output.path() + "/model.safetensors") == read_file(whole_output.path() + "/model.safetensors"));
}

TEST_P(OnDevice, AdaptersTrainAsOnTheCpu) {
  const Material material;
  const TemporaryDirectory base;
  ASSERT_THAT(testing::run(material, base.path(), {1, 0, 1, "", 1}).errors, Each(""));
  std::vector<Outcome> outcomes;
  std::vector<at::Tensor> logits;
  const TemporaryDirectory host, output;
  for (const TemporaryDirectory* each : {&host, &output}) {
    std::string json = config_of(material, each->path(), {2, 3, 1, R"(, "lora": {"target_modules": ["all-linear"]})"});
    json.replace(json.find(material.root.path()), material.root.path().size(), base.path());
    json.replace(json.find("\"from_scratch\": true"), 20, "\"from_scratch\": false");
    outcomes.push_back(each == &host ? testing::run(json, 2) : run_on_devices(json, 2));
    ASSERT_THAT(outcomes.back().errors, Each(""));
    const at::NoGradGuard no_grad;
    const auto model = load_causal_lm(base.path(), each->path());
    model->eval();
    logits.push_back(model->logits({at::arange(16).view({1, 16}), {}, {}, {}}));
  }
  expect_near(outcomes[1].told[0].losses, outcomes[0].told[0].losses);
  EXPECT_LT((logits[1] - logits[0]).abs().max().item<double>(), 1e-3);
}

// What ranks that share a model generate.
std::vector<std::vector<int32_t>> generated(const std::string& model, int world_size, const testing::MakeWorld& make,
                                            const std::string& dtype, const SamplingOptions& sampling) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::vector<int32_t>> texts(static_cast<size_t>(world_size));
  const auto errors = testing::run_threads(world_size, [&](int rank) {
    Config config;
    config.world_size = world_size;
    config.transport = Config::Transport::kProcessGroup;
    const std::unique_ptr<World> world = make(config, store, rank);
    Generator generator(model, *world, dtype);
    GenerateOptions options;
    options.max_tokens = 20;
    options.sampling = sampling;
    texts[static_cast<size_t>(rank)] = generator.generate({7, 3, 11}, options);
    world->barrier();
  });
  EXPECT_THAT(errors, Each(""));
  return texts;
}

TEST_P(OnDevice, TheTextIsTheCpus) {
  for (const auto& [model, config] : configs()) {
    const Material material;
    write_config(material, model);
    const TemporaryDirectory output;
    ASSERT_THAT(testing::run(material, output.path(), {1, 0, 1, ""}).errors, Each(""));
    for (const SamplingOptions& sampling :
         {SamplingOptions{.temperature = 0},
          SamplingOptions{.temperature = 1.2, .top_k = 30, .top_p = 0.9, .seed = 4}}) {
      const auto expected = generated(output.path(), 1, testing::world_on_host, "F32", sampling);
      ASSERT_EQ(expected[0].size(), 20u);
      for (const int world_size : {1, 3}) {
        EXPECT_THAT(generated(output.path(), world_size, world_on_device, "F32", sampling), Each(expected[0]))
            << model << " on " << world_size << " devices at temperature " << sampling.temperature;
      }
    }
  }
}

// Steps after the first two, in which buffers are made: how often the host waits for the device in each.
int64_t waits_of_a_step(const std::string& model, int accumulation) {
  const Material material;
  write_config(material, model);
  const TemporaryDirectory output;
  std::vector<int64_t> waits;
  const std::string json = config_of(material, output.path(), {1, 3, accumulation, "", 5});
  const Outcome outcome =
      run_on_devices(json, 1, false, [&](int64_t) { waits.push_back(Streams::get().counts().host_waits); });
  EXPECT_THAT(outcome.errors, Each(""));
  if (waits.size() != 6) return -1;
  EXPECT_EQ(waits[5] - waits[4], waits[4] - waits[3]);
  return waits[5] - waits[4];
}

TEST_P(OnDevice, TheHostWaitsOnceAStep) {
  EXPECT_EQ(waits_of_a_step(kLlama, 1), 1);
  EXPECT_EQ(waits_of_a_step(kLlama, 3), 1);
  EXPECT_EQ(waits_of_a_step(kGpt2, 2), 1);
  EXPECT_EQ(waits_of_a_step(kMixtral, 2), 1 + 2 * 3) << "once for each layer: how many tokens each expert has";
}

}  // namespace
}  // namespace zeroshard::accelerator

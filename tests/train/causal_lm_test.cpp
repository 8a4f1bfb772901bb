#include "zeroshard/causal_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "file/support.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

// A small one, with `more` fields: ", \"name\": value".
std::string llama(int layers = 2, const std::string& more = "") {
  std::ostringstream json;
  json << R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "initializer_range": 0.05,
    "num_hidden_layers": )"
       << layers << more << "}";
  return json.str();
}

std::shared_ptr<CausalLM> made(const std::string& config, uint64_t seed) {
  auto model = make_causal_lm(config, "config.json");
  allocate(*model);
  model->initialize(seed);
  model->eval();
  return model;
}

TEST(CausalLM, ValuesDependOnSeedAndNameAlone) {
  const auto one = made(llama(2), 7)->named_parameters(), same = made(llama(3), 7)->named_parameters();
  const auto other = made(llama(2), 8)->named_parameters();
  for (const auto& item : one) {
    EXPECT_TRUE(item.value().equal(same[item.key()])) << item.key();
    const bool norm = item.key().ends_with("norm.weight");
    EXPECT_EQ(item.value().equal(other[item.key()]), norm) << item.key();
    if (norm) {
      EXPECT_TRUE(item.value().eq(1).all().item<bool>()) << item.key();
    } else {
      EXPECT_NEAR(item.value().std().item<double>(), 0.05, 0.005) << item.key();
    }
  }
  EXPECT_FALSE(one["model.layers.0.mlp.up_proj.weight"].equal(one["model.layers.1.mlp.up_proj.weight"]));
}

// Two documents in one row, and each alone.
TEST(CausalLM, PackedDocumentsDoNotSeeEachOther) {
  const at::NoGradGuard no_grad;
  for (const char* type : {"llama", "gpt2"}) {
    const std::string gpt2 = R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4,
      "n_positions": 16})";
    const auto model = made(std::string(type) == "gpt2" ? gpt2 : llama(), 1);
    const at::Tensor ids = at::randint(50, {1, 12}, at::kLong);
    TokenBatch packed{ids, at::zeros_like(ids), {}};
    packed.documents.narrow(1, 0, 5).fill_(1);
    packed.documents.narrow(1, 5, 7).fill_(2);
    const at::Tensor logits = model->logits(packed);
    const at::Tensor first = model->logits({ids.narrow(1, 0, 5), {}, {}});
    const at::Tensor second = model->logits({ids.narrow(1, 5, 7), {}, {}});
    EXPECT_LT((logits.narrow(1, 0, 5) - first).abs().max().item<double>(), 1e-5) << type;
    EXPECT_LT((logits.narrow(1, 5, 7) - second).abs().max().item<double>(), 1e-5) << type;
  }
}

TEST(CausalLM, ChecksItsInput) {
  const auto model = made(llama(), 1);
  const auto logits = [&](const TokenBatch& batch) { return message_of<ValueError>([&] { model->logits(batch); }); };
  EXPECT_THAT(logits({at::zeros({2, 3}), {}, {}}), HasSubstr("must be int64 [batch, length]"));
  EXPECT_THAT(logits({at::zeros({3}, at::kLong), {}, {}}), HasSubstr("[3]"));
  EXPECT_THAT(logits({at::full({1, 3}, 50, at::kLong), {}, {}}), HasSubstr("token id 50"));
  EXPECT_THAT(logits({at::full({1, 3}, -1, at::kLong), {}, {}}), HasSubstr("token id -1"));
  EXPECT_THAT(logits({at::zeros({1, 17}, at::kLong), {}, {}}), HasSubstr("position 16 is outside the model's 16"));
  EXPECT_THAT(logits({at::zeros({1, 3}, at::kLong), at::zeros({1, 4}, at::kLong), {}}), HasSubstr("documents"));
}

TEST(CausalLM, NamesWhatItDoesNotSupport) {
  const auto make = [](const std::string& config) {
    return message_of<ValueError>([&] { make_causal_lm(config, "dir/config.json"); });
  };
  EXPECT_THAT(make("[]"), HasSubstr("dir/config.json: the file is no object"));
  EXPECT_THAT(make("{}"), HasSubstr("model_type: is missing"));
  for (const std::string& type : causal_lm_types())
    EXPECT_THAT(make(R"({"model_type": "t5"})"), HasSubstr(type)) << "each known type is named";
  const auto with = [&](const std::string& more) { return make(llama(2, more)); };
  EXPECT_THAT(with(R"(, "mlp_scale": 2)"), HasSubstr("mlp_scale = 2: is not a field"));
  EXPECT_THAT(with(R"(, "mlp_scale": null, "thing": false, "_private": 3)"), "");
  EXPECT_THAT(with(R"(, "rope_scaling": {"type": "dynamic", "factor": 2.0})"), HasSubstr("rope_scaling.type"));
  EXPECT_THAT(with(R"(, "vocab_size": 1e99)"), HasSubstr("vocab_size"));
  EXPECT_THAT(with(R"(, "head_dim": 7)"), HasSubstr("must be even"));
}

}  // namespace
}  // namespace zeroshard

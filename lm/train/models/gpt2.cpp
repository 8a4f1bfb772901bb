#include <ATen/ops/dropout.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

#include "train/models/attention.h"
#include "train/models/layers.h"
#include "train/models/models.h"

namespace zeroshard {
namespace {

struct Gpt2Options {
  int64_t vocab_size, max_length, hidden_size, num_layers, num_heads, inner_size;
  double norm_eps, initializer_range;
  double residual_dropout, embedding_dropout, attention_dropout;
  bool scale_attention, scale_by_layer, tied;
  Activation activation;
};

class Gpt2Attention final : public torch::nn::Module {
 public:
  Gpt2Attention(const Gpt2Options& options, int64_t layer) : options_(options), layer_(layer) {
    const int64_t size = options.hidden_size;
    query_key_value_ = register_module("c_attn", std::make_shared<Linear>(size, 3 * size, true, true));
    out_ = register_module("c_proj", std::make_shared<Linear>(size, size, true, true));
    if (options.scale_attention)
      scale_ = 1 / std::sqrt(static_cast<double>(size) / static_cast<double>(options.num_heads));
    if (options.scale_by_layer) scale_ /= static_cast<double>(layer + 1);
  }

  at::Tensor forward(const at::Tensor& x, AttentionContext& context) {
    const auto parts = query_key_value_->forward(x).unflatten(-1, {3, options_.num_heads, -1}).permute({2, 0, 3, 1, 4});
    AttentionOptions attention;
    attention.scale = scale_;
    attention.layer = layer_;
    attention.dropout = is_training() ? options_.attention_dropout : 0;
    const at::Tensor mixed = attend(parts[0], parts[1], parts[2], context, attention);
    return at::dropout(out_->forward(mixed), options_.residual_dropout, is_training());
  }

 private:
  const Gpt2Options options_;
  int64_t layer_;
  double scale_ = 1;
  std::shared_ptr<Linear> query_key_value_, out_;
};

class Gpt2FeedForward final : public torch::nn::Module {
 public:
  explicit Gpt2FeedForward(const Gpt2Options& options)
      : activation_(options.activation), dropout_(options.residual_dropout) {
    up_ = register_module("c_fc", std::make_shared<Linear>(options.hidden_size, options.inner_size, true, true));
    down_ = register_module("c_proj", std::make_shared<Linear>(options.inner_size, options.hidden_size, true, true));
  }

  at::Tensor forward(const at::Tensor& x) {
    return at::dropout(down_->forward(activation_(up_->forward(x))), dropout_, is_training());
  }

 private:
  Activation activation_;
  double dropout_;
  std::shared_ptr<Linear> up_, down_;
};

class Gpt2Block final : public torch::nn::Module {
 public:
  Gpt2Block(const Gpt2Options& options, int64_t layer) {
    norm1_ = register_module("ln_1", std::make_shared<LayerNorm>(options.hidden_size, options.norm_eps));
    attention_ = register_module("attn", std::make_shared<Gpt2Attention>(options, layer));
    norm2_ = register_module("ln_2", std::make_shared<LayerNorm>(options.hidden_size, options.norm_eps));
    feed_forward_ = register_module("mlp", std::make_shared<Gpt2FeedForward>(options));
  }

  at::Tensor forward(const at::Tensor& input, AttentionContext& context) {
    const at::Tensor x = input + attention_->forward(norm1_->forward(input), context);
    return x + feed_forward_->forward(norm2_->forward(x));
  }

 private:
  std::shared_ptr<LayerNorm> norm1_, norm2_;
  std::shared_ptr<Gpt2Attention> attention_;
  std::shared_ptr<Gpt2FeedForward> feed_forward_;
};

// Contains the parameters whose names in model files begin with "transformer.".
class Gpt2Trunk final : public torch::nn::Module {
 public:
  explicit Gpt2Trunk(const Gpt2Options& options) {
    tokens = register_module("wte", std::make_shared<Embedding>(options.vocab_size, options.hidden_size));
    positions = register_module("wpe", std::make_shared<Embedding>(options.max_length, options.hidden_size));
    blocks = register_module("h", torch::nn::ModuleList());
    for (int64_t i = 0; i < options.num_layers; ++i) blocks->push_back(std::make_shared<Gpt2Block>(options, i));
    norm = register_module("ln_f", std::make_shared<LayerNorm>(options.hidden_size, options.norm_eps));
  }

  std::shared_ptr<Embedding> tokens, positions;
  torch::nn::ModuleList blocks = nullptr;
  std::shared_ptr<LayerNorm> norm;
};

class Gpt2 final : public CausalLM {
 public:
  explicit Gpt2(const Gpt2Options& options)
      : CausalLM(
            {options.vocab_size, options.max_length, options.num_heads, options.num_heads, options.attention_dropout}),
        options_(options) {
    trunk_ = register_module("transformer", std::make_shared<Gpt2Trunk>(options));
    head_ = register_module("lm_head", std::make_shared<Linear>(options.hidden_size, options.vocab_size, false));
    if (options.tied) head_->tie(trunk_->tokens->weight());
  }

 private:
  at::Tensor forward_logits(const TokenBatch& batch, const PartRunner& runner, KvCache* cache) override {
    at::Tensor x =
        runner.run(*trunk_->tokens, batch.ids, [this](const at::Tensor& ids) { return trunk_->tokens->forward(ids); });
    x = x + runner.run(*trunk_->positions, batch.positions,
                       [this](const at::Tensor& places) { return trunk_->positions->forward(places); });
    x = at::dropout(x, options_.embedding_dropout, is_training());
    const auto context = std::make_shared<AttentionContext>(batch, cache);
    for (size_t i = 0; i < trunk_->blocks->size(); ++i) {
      Gpt2Block& block = *trunk_->blocks->ptr<Gpt2Block>(i);
      x = runner.run_block(static_cast<int64_t>(i), block, x,
                           [&block, context](const at::Tensor& input) { return block.forward(input, *context); });
    }
    if (cache) x = x.narrow(1, x.size(1) - 1, 1);
    x = runner.run(*trunk_->norm, x, [this](const at::Tensor& input) { return trunk_->norm->forward(input); });
    return runner.run(*head_, x, [this](const at::Tensor& input) { return head_->forward(input); });
  }

  // Sets biases to 0, the weights of norms to 1, and other weights to normally distributed values. The values for
  // projections into the residual stream are divided by the square root of the number of additions to that stream,
  // which is two per layer (Radford et al. 2019, 2.3).
  void initialize_parameter(const std::string& name, at::Tensor& elements, at::Generator& generator) override {
    if (name.ends_with(".bias")) {
      elements.zero_();
    } else if (name.find(".ln_") != std::string::npos) {
      elements.fill_(1);
    } else {
      const double sums = name.ends_with("c_proj.weight") ? 2.0 * static_cast<double>(options_.num_layers) : 1.0;
      elements.normal_(0, options_.initializer_range / std::sqrt(sums), generator);
    }
  }

  Gpt2Options options_;
  std::shared_ptr<Gpt2Trunk> trunk_;
  std::shared_ptr<Linear> head_;
};

}  // namespace

std::shared_ptr<CausalLM> make_gpt2(Fields& fields) {
  Gpt2Options options;
  options.vocab_size = fields.size("vocab_size");
  options.max_length = fields.size("n_positions", 1024);
  options.hidden_size = fields.size("n_embd", 768);
  options.num_layers = fields.size("n_layer", 12, kMostLayers);
  options.num_heads = fields.size("n_head", 12);
  if (options.hidden_size % options.num_heads != 0) fields.fail("n_head", "must divide n_embd");
  options.inner_size = fields.size("n_inner", 4 * options.hidden_size);
  options.norm_eps = fields.number("layer_norm_epsilon", 1e-5);
  options.initializer_range = fields.number("initializer_range", 0.02);
  options.residual_dropout = fields.probability("resid_pdrop", 0.1);
  options.embedding_dropout = fields.probability("embd_pdrop", 0.1);
  options.attention_dropout = fields.probability("attn_pdrop", 0.1);
  options.scale_attention = fields.boolean("scale_attn_weights", true);
  options.scale_by_layer = fields.boolean("scale_attn_by_inverse_layer_idx", false);
  options.tied = fields.boolean("tie_word_embeddings", true);
  options.activation = read_activation(fields, "activation_function", "gelu_new");
  fields.require("add_cross_attention", false);
  fields.ignore({"n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
                 "summary_proj_to_labels", "summary_first_dropout"});
  return std::make_shared<Gpt2>(options);
}

}  // namespace zeroshard

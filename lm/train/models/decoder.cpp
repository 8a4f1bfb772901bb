#include "train/models/decoder.h"

#include <ATen/ops/tanh.h>
#include <torch/nn/modules/container/modulelist.h>

#include "base/format.h"

namespace zeroshard {
namespace {

constexpr int64_t kMostHeadDim = int64_t{1} << 16;

// State that the layers of one forward pass share.
struct Pass {
  Rope::Angles angles;
  AttentionContext attention;
};

class Attention final : public torch::nn::Module {
 public:
  Attention(const DecoderOptions& options, int64_t layer) : head_dim_(options.head_dim) {
    const int64_t heads = options.num_heads * head_dim_, kv_heads = options.num_kv_heads * head_dim_;
    query_ = register_module("q_proj", std::make_shared<Linear>(options.hidden_size, heads, options.qkv_bias));
    key_ = register_module("k_proj", std::make_shared<Linear>(options.hidden_size, kv_heads, options.qkv_bias));
    value_ = register_module("v_proj", std::make_shared<Linear>(options.hidden_size, kv_heads, options.qkv_bias));
    out_ = register_module("o_proj", std::make_shared<Linear>(heads, options.hidden_size, options.out_bias));
    if (options.norm_query_key) {
      query_norm_ = register_module("q_norm", std::make_shared<RmsNorm>(head_dim_, options.norm_eps));
      key_norm_ = register_module("k_norm", std::make_shared<RmsNorm>(head_dim_, options.norm_eps));
    }
    attention_.scale = options.attention_scale;
    attention_.softcap = options.attention_softcap;
    attention_.window = options.windows.at(static_cast<size_t>(layer));
    attention_.layer = layer;
    dropout_ = options.attention_dropout;
  }

  at::Tensor forward(const at::Tensor& x, Pass& pass) {
    const auto heads = [&](Linear& project, RmsNorm* norm) {
      const at::Tensor split = project.forward(x).unflatten(-1, {-1, head_dim_});
      return (norm ? norm->forward(split) : split).transpose(1, 2);
    };
    const at::Tensor query = Rope::rotate(heads(*query_, query_norm_.get()), pass.angles);
    const at::Tensor key = Rope::rotate(heads(*key_, key_norm_.get()), pass.angles);
    AttentionOptions now = attention_;
    now.dropout = is_training() ? dropout_ : 0;
    return out_->forward(attend(query, key, heads(*value_, nullptr), pass.attention, now));
  }

 private:
  int64_t head_dim_;
  double dropout_;
  AttentionOptions attention_;
  std::shared_ptr<Linear> query_, key_, value_, out_;
  std::shared_ptr<RmsNorm> query_norm_, key_norm_;
};

class GatedFeedForward final : public FeedForward {
 public:
  explicit GatedFeedForward(const DecoderOptions& options) : activation_(options.activation) {
    const int64_t outer = options.hidden_size, inner = options.intermediate_size;
    gate_ = register_module("gate_proj", std::make_shared<Linear>(outer, inner, options.mlp_bias));
    up_ = register_module("up_proj", std::make_shared<Linear>(outer, inner, options.mlp_bias));
    down_ = register_module("down_proj", std::make_shared<Linear>(inner, outer, options.mlp_bias));
  }

  at::Tensor forward(const at::Tensor& x) override {
    return down_->forward(activation_(gate_->forward(x)) * up_->forward(x));
  }

 private:
  Activation activation_;
  std::shared_ptr<Linear> gate_, up_, down_;
};

class Layer final : public torch::nn::Module {
 public:
  Layer(const DecoderOptions& options, int64_t index) {
    attention_ = register_module("self_attn", std::make_shared<Attention>(options, index));
    feed_forward_ =
        options.make_feed_forward ? options.make_feed_forward(options) : std::make_shared<GatedFeedForward>(options);
    register_module(options.feed_forward_name, feed_forward_);
    const auto norm = [&](const char* name) {
      return register_module(name,
                             std::make_shared<RmsNorm>(options.hidden_size, options.norm_eps, options.norm_scale));
    };
    before_attention_ = norm("input_layernorm");
    if (options.norm_outputs) {
      after_attention_ = norm("post_attention_layernorm");
      before_feed_forward_ = norm("pre_feedforward_layernorm");
      after_feed_forward_ = norm("post_feedforward_layernorm");
    } else {
      before_feed_forward_ = norm("post_attention_layernorm");
    }
  }

  at::Tensor forward(const at::Tensor& input, Pass& pass) {
    at::Tensor change = attention_->forward(before_attention_->forward(input), pass);
    const at::Tensor x = input + (after_attention_ ? after_attention_->forward(change) : change);
    change = feed_forward_->forward(before_feed_forward_->forward(x));
    return x + (after_feed_forward_ ? after_feed_forward_->forward(change) : change);
  }

 private:
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<FeedForward> feed_forward_;
  std::shared_ptr<RmsNorm> before_attention_, after_attention_, before_feed_forward_, after_feed_forward_;
};

// Contains the parameters whose names in model files begin with "model.".
class Trunk final : public torch::nn::Module {
 public:
  explicit Trunk(const DecoderOptions& options) {
    embedding = register_module("embed_tokens", std::make_shared<Embedding>(options.vocab_size, options.hidden_size));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < options.num_layers; ++i) layers->push_back(std::make_shared<Layer>(options, i));
    norm =
        register_module("norm", std::make_shared<RmsNorm>(options.hidden_size, options.norm_eps, options.norm_scale));
  }

  std::shared_ptr<Embedding> embedding;
  torch::nn::ModuleList layers = nullptr;
  std::shared_ptr<RmsNorm> norm;
};

class Decoder final : public CausalLM {
 public:
  explicit Decoder(DecoderOptions options)
      : CausalLM({options.vocab_size, options.max_length, options.num_heads, options.num_kv_heads,
                  options.attention_dropout}),
        options_(std::move(options)) {
    trunk_ = register_module("model", std::make_shared<Trunk>(options_));
    head_ = register_module("lm_head", std::make_shared<Linear>(options_.hidden_size, options_.vocab_size, false));
    if (options_.tied) head_->tie(trunk_->embedding->weight());
  }

 private:
  at::Tensor forward_logits(const TokenBatch& batch, const PartRunner& runner, KvCache* cache) override {
    at::Tensor x = runner.run(*trunk_->embedding, batch.ids,
                              [this](const at::Tensor& ids) { return trunk_->embedding->forward(ids); });
    // Rounds the scale to the dtype of x first, because Gemma was trained with the rounded scale.
    if (options_.embedding_scale != 1) x = x * at::scalar_tensor(options_.embedding_scale, x.options());
    const auto pass = std::make_shared<Pass>(
        Pass{options_.rope->angles(batch.positions, x.scalar_type()), AttentionContext(batch, cache)});
    for (size_t i = 0; i < trunk_->layers->size(); ++i) {
      Layer& layer = *trunk_->layers->ptr<Layer>(i);
      x = runner.run_block(static_cast<int64_t>(i), layer, x,
                           [&layer, pass](const at::Tensor& input) { return layer.forward(input, *pass); });
    }
    if (cache) x = x.narrow(1, x.size(1) - 1, 1);
    x = runner.run(*trunk_->norm, x, [this](const at::Tensor& input) { return trunk_->norm->forward(input); });
    const at::Tensor logits = runner.run(*head_, x, [this](const at::Tensor& input) { return head_->forward(input); });
    if (options_.logit_softcap == 0) return logits;
    return at::tanh(logits / options_.logit_softcap) * options_.logit_softcap;
  }

  void initialize_parameter(const std::string& name, at::Tensor& elements, at::Generator& generator) override {
    const bool norm = name.ends_with("norm.weight");
    if (norm)
      elements.fill_(options_.norm_scale == RmsNorm::Scale::kOnePlusWeight ? 0 : 1);
    else if (name.ends_with(".bias"))
      elements.zero_();
    else
      elements.normal_(0, options_.initializer_range, generator);
  }

  DecoderOptions options_;
  std::shared_ptr<Trunk> trunk_;
  std::shared_ptr<Linear> head_;
};

}  // namespace

DecoderOptions read_decoder_options(Fields& fields, const DecoderDefaults& defaults) {
  DecoderOptions options;
  options.vocab_size = fields.size("vocab_size");
  options.hidden_size = fields.size("hidden_size");
  options.num_layers = fields.size("num_hidden_layers", {}, kMostLayers);
  options.intermediate_size = fields.size("intermediate_size");
  options.max_length = fields.positive("max_position_embeddings");
  options.num_heads = fields.size("num_attention_heads");
  options.num_kv_heads = fields.size("num_key_value_heads", defaults.num_kv_heads.value_or(options.num_heads));
  if (options.num_heads % options.num_kv_heads != 0)
    fields.fail("num_key_value_heads", "must divide num_attention_heads");
  if (!fields.has("head_dim") && !defaults.head_dim && options.hidden_size % options.num_heads != 0)
    fields.fail("num_attention_heads", "must divide hidden_size");
  options.head_dim =
      fields.size("head_dim", defaults.head_dim.value_or(options.hidden_size / options.num_heads), kMostHeadDim);
  if (options.num_heads > kMostSize / options.head_dim)
    fields.fail("head_dim", concat("times num_attention_heads must be at most ", kMostSize));
  options.attention_scale = 1 / std::sqrt(static_cast<double>(options.head_dim));
  options.tied = fields.boolean("tie_word_embeddings", defaults.tied);
  options.norm_eps = fields.number("rms_norm_eps", defaults.norm_eps);
  options.initializer_range = fields.number("initializer_range", 0.02);
  options.attention_dropout = fields.probability("attention_dropout", 0);
  options.activation = read_activation(fields, defaults.activation_field, defaults.activation);
  options.rope.emplace(fields, options.head_dim, defaults.rope_theta);
  options.windows.assign(static_cast<size_t>(options.num_layers), 0);
  return options;
}

int64_t read_window(Fields& fields) {
  return fields.has("sliding_window") ? fields.positive("sliding_window") : fields.integer("sliding_window", 0);
}

std::vector<int64_t> read_windows_by_layer(Fields& fields, int64_t num_layers, int64_t window,
                                           const std::function<bool(int64_t)>& slides) {
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != num_layers)
    fields.fail("layer_types", "must have an entry for each of num_hidden_layers");
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string type = !types.empty()  ? types[static_cast<size_t>(layer)]
                             : slides(layer) ? "sliding_attention"
                                             : "full_attention";
    if (type != "sliding_attention" && type != "full_attention")
      fields.fail("layer_types", "may hold full_attention and sliding_attention only");
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  return windows;
}

std::shared_ptr<CausalLM> make_decoder(DecoderOptions options) {
  return std::make_shared<Decoder>(std::move(options));
}

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/models/attention.h"
#include "train/models/fields.h"
#include "train/models/layers.h"
#include "train/models/rope.h"
#include "zeroshard/causal_lm.h"

namespace zeroshard {

// The decoder that most models of today share: rotary positions, RMS norms before attention and feed-forward, grouped
// key and value heads, a gated feed-forward. Llama is this with the defaults.
struct DecoderOptions {
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0, intermediate_size = 0, max_length = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool tied = false;  // the head's weight is the embedding's
  double norm_eps = 1e-6, initializer_range = 0.02;
  Activation activation;
  std::optional<Rope> rope;

  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool norm_query_key = false;  // RMS norm of each head's query and key
  double attention_scale = 0, attention_dropout = 0, attention_softcap = 0;
  std::vector<int64_t> windows;  // of each layer; 0: none

  RmsNorm::Scale norm_scale = RmsNorm::Scale::kWeight;
  bool norm_outputs = false;   // norms after attention and feed-forward, too
  double embedding_scale = 1;  // of what the embedding returns
  double logit_softcap = 0;    // 0: none

  // Another feed-forward than the gated one, and its name in the files.
  std::function<std::shared_ptr<class FeedForward>(const DecoderOptions&)> make_feed_forward;
  std::string feed_forward_name = "mlp";
};

// Reads what all of them have, with the defaults of `model_type`'s configuration class given in `defaults`.
struct DecoderDefaults {
  double norm_eps = 1e-6;
  std::optional<int64_t> num_kv_heads;  // none: as many as heads
  std::optional<int64_t> head_dim;      // none: hidden_size / num_attention_heads
  bool tied = false;
  double rope_theta = 10000;
  const char* activation_field = "hidden_act";
  const char* activation = "silu";
};
DecoderOptions read_decoder_options(Fields& fields, const DecoderDefaults& defaults);

// [batch, length, features] in and out.
class FeedForward : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

// Reads sliding_window where it counts for all layers; 0: there is none.
int64_t read_window(Fields& fields);
// The window of each layer, as layer_types says: "full_attention" or "sliding_attention". Without it,
// `slides(layer)` decides.
std::vector<int64_t> read_windows_by_layer(Fields& fields, int64_t num_layers, int64_t window,
                                           const std::function<bool(int64_t)>& slides);

std::shared_ptr<CausalLM> make_decoder(DecoderOptions options);

}  // namespace zeroshard

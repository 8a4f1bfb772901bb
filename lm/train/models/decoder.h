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

// The options of the decoder that most current models share: rotary positions, RMS norms before attention and
// feed-forward, grouped key and value heads, and a gated feed-forward. The defaults give Llama.
struct DecoderOptions {
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0, intermediate_size = 0, max_length = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool tied = false;  // the head uses the embedding's weight
  double norm_eps = 1e-6, initializer_range = 0.02;
  Activation activation;
  std::optional<Rope> rope;

  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool norm_query_key = false;  // RMS norm of each head's query and key
  double attention_scale = 0, attention_dropout = 0, attention_softcap = 0;
  std::vector<int64_t> windows;  // by layer; 0: no window

  RmsNorm::Scale norm_scale = RmsNorm::Scale::kWeight;
  bool norm_outputs = false;   // also normalise after attention and feed-forward
  double embedding_scale = 1;  // factor of the embedding's result
  double logit_softcap = 0;    // 0: none

  // Makes the module that replaces the gated feed-forward, and the name of that module in the files.
  std::function<std::shared_ptr<class FeedForward>(const DecoderOptions&)> make_feed_forward;
  std::string feed_forward_name = "mlp";
};

// The defaults of `model_type`'s configuration class, for the common fields.
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

// A feed-forward module. Its input and output are [batch, length, features].
class FeedForward : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

// Returns the field sliding_window, which applies to all layers; 0: no window.
int64_t read_window(Fields& fields);
// Returns the window of each layer, from layer_types: "full_attention" or "sliding_attention". Without that field,
// `slides(layer)` decides.
std::vector<int64_t> read_windows_by_layer(Fields& fields, int64_t num_layers, int64_t window,
                                           const std::function<bool(int64_t)>& slides);

std::shared_ptr<CausalLM> make_decoder(DecoderOptions options);

}  // namespace zeroshard

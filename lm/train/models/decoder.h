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

// The options of the decoder architecture that most current models share. This architecture has rotary positions, RMS
// norms before attention and feed-forward, grouped key and value heads, and a gated feed-forward. The defaults are
// Llama's.
struct DecoderOptions {
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0, intermediate_size = 0, max_length = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool tied = false;  // true: the head uses the embedding's weight
  double norm_eps = 1e-6, initializer_range = 0.02;
  Activation activation;
  std::optional<Rope> rope;

  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool norm_query_key = false;  // true: each head's query and key get an RMS norm
  double attention_scale = 0, attention_dropout = 0, attention_softcap = 0;
  std::vector<int64_t> windows;  // by layer; 0: no window

  RmsNorm::Scale norm_scale = RmsNorm::Scale::kWeight;
  bool norm_outputs = false;   // true: attention and feed-forward also have RMS norms after them
  double embedding_scale = 1;  // the embedding's result is multiplied by this
  double logit_softcap = 0;    // 0: none

  // If set, makes the module that replaces the gated feed-forward. `feed_forward_name` is the name of the feed-forward
  // module in model files, whether replaced or not.
  std::function<std::shared_ptr<class FeedForward>(const DecoderOptions&)> make_feed_forward;
  std::string feed_forward_name = "mlp";
};

// The defaults that transformers has for the common fields of one model_type.
struct DecoderDefaults {
  double norm_eps = 1e-6;
  std::optional<int64_t> num_kv_heads;  // unset: as many as heads
  std::optional<int64_t> head_dim;      // unset: hidden_size / num_attention_heads
  bool tied = false;
  double rope_theta = 10000;
  const char* activation_field = "hidden_act";
  const char* activation = "silu";
};
DecoderOptions read_decoder_options(Fields& fields, const DecoderDefaults& defaults);

// A feed-forward module. The input and the output are [batch, length, features].
class FeedForward : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

// Returns the value of the field sliding_window, or 0 if the field is not given. 0 means that there is no window.
int64_t read_window(Fields& fields);
// Returns the window of each layer: `window` for layers that the field layer_types calls "sliding_attention", and 0 for
// "full_attention". Without that field, layers for which slides(layer) is true get `window`, and the others 0.
std::vector<int64_t> read_windows_by_layer(Fields& fields, int64_t num_layers, int64_t window,
                                           const std::function<bool(int64_t)>& slides);

std::shared_ptr<CausalLM> make_decoder(DecoderOptions options);

}  // namespace zeroshard

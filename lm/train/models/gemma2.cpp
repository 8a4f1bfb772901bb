#include <cmath>

#include "train/models/decoder.h"
#include "train/models/models.h"

namespace zeroshard {

std::shared_ptr<CausalLM> make_gemma2(Fields& fields) {
  DecoderDefaults defaults;
  defaults.num_kv_heads = 4;
  defaults.head_dim = 256;
  defaults.tied = true;
  defaults.activation_field = "hidden_activation";
  defaults.activation = "gelu_pytorch_tanh";
  DecoderOptions options = read_decoder_options(fields, defaults);
  fields.ignore({"hidden_act"});  // because the model uses hidden_activation instead
  fields.require("use_bidirectional_attention", false);
  options.qkv_bias = options.out_bias = fields.boolean("attention_bias", false);
  options.norm_scale = RmsNorm::Scale::kOnePlusWeight;
  options.norm_outputs = true;
  options.embedding_scale = std::sqrt(static_cast<double>(options.hidden_size));
  options.attention_scale = 1 / std::sqrt(fields.number("query_pre_attn_scalar", 256));
  options.attention_softcap =
      fields.number("attn_logit_softcapping", fields.written("attn_logit_softcapping") ? 0 : 50);
  options.logit_softcap = fields.number("final_logit_softcapping", fields.written("final_logit_softcapping") ? 0 : 30);
  const int64_t window = fields.written("sliding_window") ? read_window(fields) : 4096;
  options.windows =
      read_windows_by_layer(fields, options.num_layers, window, [](int64_t layer) { return layer % 2 == 0; });
  return make_decoder(std::move(options));
}

}  // namespace zeroshard

#include "train/models/decoder.h"
#include "train/models/models.h"

namespace zeroshard {
namespace {

void read_windows(Fields& fields, DecoderOptions& options) {
  const int64_t given = read_window(fields), from = fields.integer("max_window_layers", 28);
  const int64_t window = fields.boolean("use_sliding_window", false) ? given : 0;
  options.windows = read_windows_by_layer(fields, options.num_layers, window,
                                          [&](int64_t layer) { return window > 0 && layer >= from; });
}

}  // namespace

std::shared_ptr<CausalLM> make_qwen2(Fields& fields) {
  DecoderOptions options = read_decoder_options(fields, {});
  options.qkv_bias = true;
  read_windows(fields, options);
  return make_decoder(std::move(options));
}

std::shared_ptr<CausalLM> make_qwen3(Fields& fields) {
  DecoderDefaults defaults;
  defaults.head_dim = 128;
  DecoderOptions options = read_decoder_options(fields, defaults);
  options.qkv_bias = options.out_bias = fields.boolean("attention_bias", false);
  options.norm_query_key = true;
  read_windows(fields, options);
  return make_decoder(std::move(options));
}

}  // namespace zeroshard

#include "train/models/decoder.h"
#include "train/models/models.h"

namespace zeroshard {

std::shared_ptr<CausalLM> make_llama(Fields& fields) {
  DecoderOptions options = read_decoder_options(fields, {});
  options.qkv_bias = options.out_bias = fields.boolean("attention_bias", false);
  options.mlp_bias = fields.boolean("mlp_bias", false);
  fields.ignore({"pretraining_tp"});                             // says only how matrices were multiplied in training
  fields.ignore({"is_llama_config", "transformers.js_config"});  // written by other programs than transformers
  return make_decoder(std::move(options));
}

}  // namespace zeroshard

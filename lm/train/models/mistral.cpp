#include "train/models/decoder.h"
#include "train/models/models.h"

namespace zeroshard {

std::shared_ptr<CausalLM> make_mistral(Fields& fields) {
  DecoderDefaults defaults;
  defaults.num_kv_heads = 8;
  DecoderOptions options = read_decoder_options(fields, defaults);
  options.windows.assign(options.windows.size(), read_window(fields));
  return make_decoder(std::move(options));
}

}  // namespace zeroshard

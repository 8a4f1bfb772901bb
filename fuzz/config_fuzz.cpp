// Any bytes as a configuration: a ConfigError, or a result that is the same when the text is read again. The first byte
// chooses what the caller knows.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "zeroshard/config.h"
#include "zeroshard/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  zeroshard::ConfigContext context;
  context.world_size = 1 + (data[0] & 7);
  if ((data[0] & 8) != 0) context.hidden_size = 64;
  if ((data[0] & 16) != 0) context.default_micro_batch_size = 1;
  try {
    const zeroshard::ParsedConfig parsed = zeroshard::parse_config(text, context);
    const zeroshard::Config& config = parsed.config;
    if (config.train_batch_size != config.micro_batch_size * config.grad_accumulation_steps * config.world_size)
      std::abort();
    if (zeroshard::parse_config(text, context).config.digest() != config.digest()) std::abort();
  } catch (const zeroshard::ConfigError&) {
  }
  return 0;
}

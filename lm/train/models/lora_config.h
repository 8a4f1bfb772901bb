#pragma once
#include <string>

#include "zeroshard/lora.h"

namespace zeroshard {

constexpr char kAdapterConfig[] = "adapter_config.json";

// Returns the text of the adapter_config.json that PEFT reads together with an adapter's weights. `options` are the
// result of add_lora() for `model`. `base` is the directory or the name of the model without the adapter.
std::string make_adapter_config(const CausalLM& model, const LoraOptions& options, const std::string& base);

}  // namespace zeroshard

#pragma once
#include <string>

#include "zeroshard/lora.h"

namespace zeroshard {

constexpr char kAdapterConfig[] = "adapter_config.json";

// The config file that PEFT reads beside an adapter's weights. `options`: as returned by add_lora() for `model`;
// `base`: the directory or the name of the model without the adapter.
std::string make_adapter_config(const CausalLM& model, const LoraOptions& options, const std::string& base);

}  // namespace zeroshard

#pragma once
#include <map>
#include <string>
#include <string_view>

#include "train/models/layers.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/lora.h"

namespace zeroshard {

// Suffixes of the adapters' parameter names in a model.
constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";
// PEFT's prefix to these names.
constexpr std::string_view kPeftPrefix = "base_model.model.";

// The linear modules with adapters, by their paths.
std::map<std::string, const Linear*> adapted_modules(const CausalLM& model);

}  // namespace zeroshard

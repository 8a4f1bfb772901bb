#pragma once
#include <map>
#include <string>
#include <string_view>

#include "train/models/layers.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/lora.h"

namespace zeroshard {

// The ends of the names of the adapters' parameters in a model.
constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";
// The prefix that PEFT puts before these parameters' names.
constexpr std::string_view kPeftPrefix = "base_model.model.";

// Returns the linear modules that have adapters, by path.
std::map<std::string, const Linear*> adapted_modules(const CausalLM& model);

}  // namespace zeroshard

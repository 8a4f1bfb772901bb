#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Adapters of low rank (LoRA, Hu et al. 2021) of language models, in the format of Hugging Face's PEFT.
namespace zeroshard {

class CausalLM;
struct ParameterValues;

// To the output of an adapted linear module with weight [out, in] is added scale * B A dropout(x), where A is [r, in]
// and B is [out, r].
struct LoraOptions {
  int64_t r = 8;
  double alpha = 8;         // scale = alpha / r
  double dropout = 0;       // in training
  bool use_rslora = false;  // scale = alpha / sqrt(r) (Kalajdzievski 2023)
  // Modules whose path is one of these, or ends in "." and one of these; {"all-linear"}: every linear one but the head.
  // Empty: q_proj and v_proj; of GPT-2 c_attn.
  std::vector<std::string> target_modules;

  double scale() const;
};

// What the adapter_config.json of a directory says. Throws IoError or ValueError naming the file and the field, also
// for every field that would make the adapter something else.
LoraOptions read_lora_options(const std::string& directory);

// Adds adapters to a model, as parameters without memory: MODULE.lora_A.weight, drawn uniformly from +-1/sqrt(in) by
// initialize(), and MODULE.lora_B.weight, zero at first. No other parameter requires a gradient from then on. Returns
// the options with target_modules spelled out. Throws ValueError, beginning with the option's name, when an entry of
// target_modules is no linear module.
LoraOptions add_lora(CausalLM& model, LoraOptions options);

// `adapters` for the parameters that add_lora() has added, `base` for all others.
ParameterValues with_adapters(const CausalLM& model, ParameterValues base, ParameterValues adapters);
// The values of those in a directory's adapter_model.safetensors. Throws IoError or ValueError naming the file, and
// the tensor when one is missing, has another shape, or belongs to no adapter of the model.
ParameterValues stored_adapters(const CausalLM& model, const std::string& directory);

// The model of a Hugging Face directory with an adapter of another, both with their weights, in memory.
std::shared_ptr<CausalLM> load_causal_lm(const std::string& directory, const std::string& adapter);

}  // namespace zeroshard

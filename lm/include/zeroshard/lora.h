#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Adds and reads low-rank adapters of language models (LoRA, Hu et al. 2021), in the format of Hugging Face's PEFT.
namespace zeroshard {

class CausalLM;
struct ParameterValues;

// The options of an adapter. An adapter adds scale * B A dropout(x) to the output of a linear module with weight [out,
// in], where A is [r, in] and B is [out, r].
struct LoraOptions {
  int64_t r = 8;
  double alpha = 8;         // scale = alpha / r, unless use_rslora
  double dropout = 0;       // used only in training
  bool use_rslora = false;  // true: scale = alpha / sqrt(r) (Kalajdzievski 2023)
  // The modules that get adapters. An entry selects each linear module whose path is the entry or ends in "." and the
  // entry. {"all-linear"} selects every linear module except the head. Empty: q_proj and v_proj, or c_attn for GPT-2.
  std::vector<std::string> target_modules;

  double scale() const;
};

// Reads the adapter_config.json of a directory. Throws an IoError or ValueError that names the file and the field. A
// field that zeroshard does not support is an error, too.
LoraOptions read_lora_options(const std::string& directory);

// Adds adapters to a model. Each adapter has two parameters, MODULE.lora_A.weight and MODULE.lora_B.weight. They have
// no memory until allocate() or a ModuleEngine gives them some. CausalLM::initialize() draws lora_A uniformly from
// [-1/sqrt(in), 1/sqrt(in)] and sets lora_B to zero. add_lora() turns off requires_grad of all other parameters.
// Returns the options with target_modules spelled out. Throws a ValueError that begins with the option's name for a
// value outside of its range, for an entry of target_modules that selects no linear module, and for a head whose weight
// is also another module's. Throws ValueError if the model has adapters already.
LoraOptions add_lora(CausalLM& model, LoraOptions options);

// Returns values from `adapters` for the parameters that add_lora() added, and from `base` for all others. `model` must
// outlive the result.
ParameterValues with_adapters(const CausalLM& model, ParameterValues base, ParameterValues adapters);
// Returns the values in a directory's adapter_model.safetensors. Throws an IoError or ValueError that names the file.
// The error also names a tensor that is missing, has another shape, or belongs to no adapter of the model.
ParameterValues stored_adapters(const CausalLM& model, const std::string& directory);

// Loads a model from the Hugging Face directory `directory`, and its adapter from the directory `adapter`, into memory.
// Throws the errors of make_causal_lm(), read_lora_options(), stored_values() and stored_adapters().
std::shared_ptr<CausalLM> load_causal_lm(const std::string& directory, const std::string& adapter);

}  // namespace zeroshard

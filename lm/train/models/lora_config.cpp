#include "train/models/lora_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/read_text.h"
#include "tokenizer/json_field.h"
#include "train/models/fields.h"
#include "train/models/lora.h"

namespace zeroshard {
namespace {

// Ignores fields of PEFT without effect on a plain adapter. Some of them only describe how the adapter was made. The
// others only configure features that must be switched on by other fields.
void ignore_fields_without_bearing(Fields& fields) {
  fields.ignore({"base_model_name_or_path", "revision", "peft_version", "inference_mode", "fan_in_fan_out",
                 "auto_mapping", "megatron_core", "qalora_group_size"});
}

// Throws ValueError for values that LoraOptions cannot express, such as another kind of adapter or a change of the base
// model.
void require_plain_lora(Fields& fields) {
  if (fields.text("peft_type") != "LORA") fields.fail("peft_type", "is not supported; only \"LORA\" is");
  fields.require("task_type", "CAUSAL_LM");
  fields.require("bias", "none");
  for (const char* name : {"use_dora", "lora_bias", "use_qalora"}) fields.require(name, false);
  for (const char* name : {"rank_pattern", "alpha_pattern", "loftq_config"})
    fields.require(name, nlohmann::json::object());
  for (const char* name :
       {"modules_to_save", "exclude_modules", "layers_to_transform", "layers_pattern", "target_parameters"})
    fields.require(name, nlohmann::json::array());
}

// Throws ValueError for kinds of initialisation that may also change the model's own weights. Only true, false and the
// three kinds in the code leave these weights unchanged.
void require_untouched_base(Fields& fields, const nlohmann::json& config) {
  const auto found = config.find("init_lora_weights");
  if (found == config.end() || !found->is_string()) {
    fields.boolean("init_lora_weights", true);
    return;
  }
  const std::string how = fields.text("init_lora_weights");
  if (how != "gaussian" && how != "eva" && how != "orthogonal")
    fields.fail("init_lora_weights", "is not supported: it may change the weights of the model below the adapter");
}

}  // namespace

LoraOptions read_lora_options(const std::string& directory) {
  const std::string path = concat(directory, '/', kAdapterConfig);
  const std::string text = read_text(path, ": an adapter in PEFT's format has one");
  const nlohmann::json config = parse_json(text, path);
  Fields fields(config, path);
  require_plain_lora(fields);
  require_untouched_base(fields, config);
  ignore_fields_without_bearing(fields);
  LoraOptions options;
  options.r = fields.size("r", options.r);
  options.alpha = fields.number("lora_alpha", options.alpha);
  options.dropout = fields.probability("lora_dropout", options.dropout);
  options.use_rslora = fields.boolean("use_rslora", false);
  options.target_modules = fields.text_or_texts("target_modules");
  if (options.target_modules.empty()) fields.fail("target_modules", "must name the modules that have adapters");
  fields.finish();
  return options;
}

std::string make_adapter_config(const CausalLM& model, const LoraOptions& options, const std::string& base) {
  const auto adapted = adapted_modules(model);
  const bool transposed =
      std::any_of(adapted.begin(), adapted.end(), [](const auto& each) { return each.second->transposed(); });
  nlohmann::ordered_json config;
  config["base_model_name_or_path"] = base;
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["inference_mode"] = true;
  config["r"] = options.r;
  if (std::floor(options.alpha) == options.alpha && options.alpha < 1e9)
    config["lora_alpha"] = static_cast<int64_t>(options.alpha);
  else
    config["lora_alpha"] = options.alpha;
  config["lora_dropout"] = options.dropout;
  config["use_rslora"] = options.use_rslora;
  config["target_modules"] = options.target_modules;
  config["fan_in_fan_out"] = transposed;
  config["bias"] = "none";
  config["init_lora_weights"] = true;
  return config.dump(2) + "\n";
}

}  // namespace zeroshard

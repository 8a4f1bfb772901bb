#include "train/network_fields.h"

#include "base/check.h"
#include "base/read_text.h"
#include "tokenizer/json_field.h"

namespace zeroshard {
namespace {

// The fields of config.json that must have the same values in a run and in the checkpoint from which it continues. The
// list leaves out dropout, initial values and the largest length, because a run may change them.
constexpr const char* kNames[] = {"model_type",
                                  "num_attention_heads",
                                  "num_key_value_heads",
                                  "n_head",
                                  "head_dim",
                                  "num_experts_per_tok",
                                  "rms_norm_eps",
                                  "layer_norm_epsilon",
                                  "hidden_act",
                                  "hidden_activation",
                                  "activation_function",
                                  "rope_theta",
                                  "rope_scaling",
                                  "rope_parameters",
                                  "sliding_window",
                                  "use_sliding_window",
                                  "max_window_layers",
                                  "layer_types",
                                  "query_pre_attn_scalar",
                                  "attn_logit_softcapping",
                                  "final_logit_softcapping",
                                  "scale_attn_weights",
                                  "scale_attn_by_inverse_layer_idx"};

}  // namespace

nlohmann::json network_fields(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const nlohmann::json config = parse_json(read_text(path), path);
  nlohmann::json fields = nlohmann::json::object();
  for (const char* name : kNames) fields[name] = config.is_object() ? config.value(name, nlohmann::json()) : nullptr;
  return fields;
}

std::string changed_fields(const nlohmann::json& before, const nlohmann::json& now) {
  std::string changes;
  for (const auto& [name, value] : now.items()) {
    if (!before.contains(name) || before.at(name) == value) continue;
    changes += concat(changes.empty() ? "" : ", ", name, " was ", before.at(name).dump(), " and is ", value.dump());
  }
  return changes;
}

}  // namespace zeroshard

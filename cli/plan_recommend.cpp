#include "plan_recommend.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/read_text.h"
#include "config/json_text.h"
#include "format.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

using Json = nlohmann::ordered_json;

Json optimizer_of(const std::string& name) {
  const bool is_sgd = name.starts_with("sgd");
  const char* type = name == "adamw"     ? "AdamW"
                     : name == "adam"    ? "Adam"
                     : name == "lion"    ? "Lion"
                     : name == "adagrad" ? "Adagrad"
                     : name == "muon"    ? "Muon"
                                         : "SGD";
  Json json{{"type", type}, {"params", {{"lr", "auto"}}}};
  if (is_sgd) json["params"]["momentum"] = name == "sgd" ? 0 : 0.9;
  return json;
}

// Returns a configuration for a plan that was made without a configuration file. The learning rate in it is "auto",
// because a plan has none.
Json new_file(const PlanInputs& inputs) {
  const int64_t batch = inputs.activations ? inputs.activations->batch : inputs.batch.sequences;
  Json json{{"train_micro_batch_size_per_gpu", batch}, {"gradient_accumulation_steps", 1}};
  const int64_t sharing = inputs.activations ? inputs.activations->sequence_parallel : inputs.batch.sequence_parallel;
  if (sharing > 1) json["sequence_parallel_size"] = sharing;
  if (inputs.options.compute_dtype != DType::kFloat32)
    json[std::string(name_of(inputs.options.compute_dtype))] = {{"enabled", true}};
  json["optimizer"] = optimizer_of(inputs.optimizer_name);
  json["zero_optimization"] = {{"stage", inputs.stages.front()}};
  return json;
}

Json file_to_change(const RecommendedFrom& from) {
  if (from.config_path.empty()) return new_file(from.inputs);
  Json json = read_json(read_text(from.config_path, "", kMaxConfigBytes));
  if (Json& zero = json["zero_optimization"]; !zero.is_object()) zero = Json::object();
  return json;
}

// Sets the nested key that `path` names with dots. Erases a flat key whose name is `path`, because a flat key has no
// effect if the nested one is set.
void set(Json& json, const std::string& path, const Json& value) {
  json.erase(path);
  std::string pointer = "/" + path;
  for (char& c : pointer)
    if (c == '.') c = '/';
  json[Json::json_pointer(pointer)] = value;
}

// Replaces "auto" as the device of an offload by the device in `chosen`. A run with "auto" would choose by the memory
// limits of its own machine, not by those of the plan.
void name_chosen(Json& json, const Config& chosen) {
  const std::pair<const char*, OffloadDevice> places[] = {{"offload_optimizer", chosen.offload_optimizer.device},
                                                          {"offload_param", chosen.offload_param.device}};
  for (const auto& [block, device] : places) {
    const Json::json_pointer where(concat("/zero_optimization/", block, "/device"));
    if (json.contains(where) && json[where] == "auto") json[where] = name_of(device);
  }
}

void name_directories(Json& json, const RecommendedFrom& from) {
  for (const char* block : {"offload_optimizer", "offload_param"}) {
    const Json::json_pointer where(concat("/zero_optimization/", block));
    if (!json.contains(where) || json[where].value("device", "") != "nvme" || json[where].contains("nvme_path"))
      continue;
    if (from.nvme_path.empty())
      throw ValueError(concat("the recommended configuration has zero_optimization.", block,
                              ".device = \"nvme\": give --nvme-path, the directory on the disk that is to be used"));
    json[where]["nvme_path"] = from.nvme_path;
  }
}

// Parses the configuration `text` as a run does. Throws ValueError if the run would need more or less memory than was
// planned.
void check_meaning(const std::string& text, const Recommendation& recommended, const PlanInputs& inputs) {
  ConfigContext context;
  context.world_size = recommended.change.options.world_size;
  if (inputs.model) context.hidden_size = inputs.model->hidden_size;
  const PlanOptions& planned = recommended.change.options;
  const PlanOptions read = plan_options(parse_config(text, context).config, planned.on_device);
  const MemoryNeeds needs = inputs.memory_needs(inputs.plan(read));
  if (needs.device == recommended.needs.device && needs.host == recommended.needs.host) return;
  throw ValueError(concat("the recommended configuration is not written, because a run of it would need ",
                          int64_t(needs.device), " bytes of the device and ", int64_t(needs.host),
                          " of the host instead of the planned ", int64_t(recommended.needs.device), " and ",
                          int64_t(recommended.needs.host),
                          ". Give --dtype and --optimizer the values that --config has"));
}

}  // namespace

std::optional<Recommendation> recommend(const PlanInputs& inputs, const std::vector<StagePlan>& plans) {
  const auto made = [&](FitChange change) {
    const MemoryNeeds needs = inputs.memory_needs(inputs.plan(change.options));
    return Recommendation{std::move(change), needs};
  };
  if (!plans.front().fit) {
    if (plans.size() > 1) return std::nullopt;
    return made({{}, inputs.asked_at_stage(plans.front().stage)});
  }
  for (const StagePlan& plan : plans)
    if (plan.fit->fits) return made({{}, inputs.asked_at_stage(plan.stage)});
  if (const std::optional<FitChange>& change = plans.front().change) return made(*change);
  return std::nullopt;
}

void write_recommended(const std::string& path, const std::optional<Recommendation>& recommended,
                       const RecommendedFrom& from) {
  if (!recommended)
    throw ValueError(from.inputs.limits.device || from.inputs.limits.host
                         ? "--write: no configuration fits, so none is written"
                         : "--write needs one --stage, or --device-memory, by which one is chosen");
  Json json = file_to_change(from);
  set(json, "zero_optimization.stage", recommended->change.options.stage);
  for (const KeyValue& key : recommended->change.keys) set(json, key.path, Json::parse(key.value));
  if (from.inputs.config) name_chosen(json, *from.inputs.config);
  name_directories(json, from);
  const std::string text = json_text(json);
  check_meaning(text, *recommended, from.inputs);
  if (path == "-") {
    std::cout << text;
    return;
  }
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw IoError(concat("--write: '", path, "' cannot be written"));
}

}  // namespace zeroshard::cli

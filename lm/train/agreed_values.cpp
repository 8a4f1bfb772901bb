#include "train/agreed_values.h"

#include "base/format.h"

namespace zeroshard {
namespace {

const char* name_of(DatasetOptions::Packing packing) {
  using Packing = DatasetOptions::Packing;
  return packing == Packing::kStream ? "stream" : packing == Packing::kWhole ? "whole" : "separate";
}

std::string text_of(const Dataset& data) {
  return concat(data.tokens(), " in ", data.documents(), " document(s), digest ", data.digest());
}

nlohmann::ordered_json values_of(const TrainOptions& options) {
  nlohmann::ordered_json values{{"seed", options.seed},
                                {"from_scratch", options.from_scratch},
                                {"steps", options.steps},
                                {"epochs", options.epochs},
                                {"data.length", options.rows.length},
                                {"data.packing", name_of(options.rows.packing)},
                                {"data.shuffle", options.rows.shuffle},
                                {"data.validation_share", options.rows.validation_share},
                                {"evaluation.every", options.evaluate_every},
                                {"evaluation.rows", options.evaluation_rows},
                                {"evaluation.patience", options.patience},
                                {"checkpoints.every", options.checkpoint_every},
                                {"activation_checkpointing.every", options.recompute_every},
                                {"samples.prompts", options.sample_prompts},
                                {"samples.tokens", options.sample_tokens},
                                {"freeze", options.freeze},
                                {"lora", options.lora.has_value()}};
  if (!options.lora) return values;
  values["lora.r"] = options.lora->r;
  values["lora.alpha"] = options.lora->alpha;
  values["lora.dropout"] = options.lora->dropout;
  values["lora.use_rslora"] = options.lora->use_rslora;
  values["lora.target_modules"] = options.lora->target_modules;
  return values;
}

}  // namespace

ParsedConfig with_agreed_values(ParsedConfig parsed, const TrainOptions& options, const nlohmann::json& network,
                                const Dataset& training, const Dataset* validation) {
  const nlohmann::ordered_json train = values_of(options);
  for (const auto& [name, value] : train.items()) parsed.values.push_back({"train." + name, value.dump(), "file"});
  for (const auto& [name, value] : network.items())
    parsed.values.push_back({concat(name, " (config.json)"), value.dump(), "file"});
  parsed.values.push_back({"the tokens of train.data.train", text_of(training), "file"});
  if (validation != nullptr)
    parsed.values.push_back({"the tokens of train.data.validation", text_of(*validation), "file"});
  return parsed;
}

}  // namespace zeroshard

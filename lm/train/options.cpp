#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "config/json_text.h"
#include "train/models/fields.h"
#include "zeroshard/train.h"

namespace zeroshard {
namespace {

using Packing = DatasetOptions::Packing;

Packing read_packing(Fields& fields) {
  const std::string name = fields.text("packing", "stream");
  if (name == "stream") return Packing::kStream;
  if (name == "whole") return Packing::kWhole;
  if (name == "separate") return Packing::kSeparate;
  fields.fail("packing", "must be stream, whole or separate");
}

void read_text(Fields& fields, TokenizeOptions& text) {
  const std::string format = fields.text("format", "auto");
  const auto* const found = std::find_if(std::begin(kTokenizeFormats), std::end(kTokenizeFormats),
                                         [&](const auto& each) { return each.first == format; });
  if (found == std::end(kTokenizeFormats)) fields.fail("format", "must be auto, text, jsonl, chat or instruct");
  text.format = found->second;
  text.field = fields.text("field", "");
  text.template_name = fields.text("template", text.template_name);
  text.append_eos = fields.boolean("append_eos", text.append_eos);
  text.split_at(fields.text("separator", ""));
  fields.finish(/*strict=*/true);
}

void read_data(Fields& fields, TrainOptions& options) {
  options.data = fields.paths("train");
  if (options.data.empty()) fields.fail("train", "must name at least one file of tokens or text");
  options.validation_data = fields.paths("validation");
  options.rows.validation_share = fields.probability("validation_share", 0);
  if (options.rows.validation_share > 0 && !options.validation_data.empty())
    fields.fail("validation_share", "must not be there beside \"validation\": one of them says what is held out");
  options.rows.length = fields.positive("length");
  options.rows.packing = read_packing(fields);
  options.rows.shuffle = fields.boolean("shuffle", true);
  if (std::optional<Fields> text = fields.object("text")) read_text(*text, options.text);
  fields.finish(/*strict=*/true);
}

void read_evaluation(Fields& fields, TrainOptions& options) {
  options.evaluate_every = fields.integer("every", 0);
  options.evaluation_rows = fields.integer("rows", 0);
  options.patience = fields.integer("patience", 0);
  fields.finish(/*strict=*/true);
}

void read_checkpoints(Fields& fields, TrainOptions& options) {
  options.checkpoint_every = fields.integer("every", 0);
  options.checkpoints = fields.path("folder", "");
  fields.finish(/*strict=*/true);
}

// "none", "full", or {"every": k}.
int64_t read_recompute(Fields& fields, const nlohmann::json& train) {
  const auto found = train.find("activation_checkpointing");
  if (found == train.end() || !found->is_object()) {
    const std::string text = fields.text("activation_checkpointing", "none");
    if (text != "none" && text != "full")
      fields.fail("activation_checkpointing", "must be \"none\", \"full\" or {\"every\": k}");
    return text == "full" ? 1 : 0;
  }
  std::optional<Fields> own = fields.object("activation_checkpointing");
  const int64_t every = own->positive("every");
  own->finish(/*strict=*/true);
  return every;
}

void read_length_of_run(Fields& fields, TrainOptions& options) {
  options.steps = fields.integer("steps", 0);
  options.epochs = fields.number("epochs", 0.0);
  if (options.epochs < 0) fields.fail("epochs", "must be positive");
  if ((options.steps > 0) == (options.epochs > 0))
    fields.fail("steps", "exactly one of \"steps\" and \"epochs\" says how long to train");
}

// With "adapter", the adapter's values are the defaults and the only allowed ones, except for dropout.
void read_lora(Fields& fields, TrainOptions& options) {
  options.lora_adapter = fields.path("adapter", "");
  options.lora_merge = fields.boolean("merge", false);
  const bool from_adapter = !options.lora_adapter.empty();
  const LoraOptions from = from_adapter ? read_lora_options(options.lora_adapter) : LoraOptions();
  const auto check_same = [&](const char* name, bool same, const auto& value) {
    if (from_adapter && !same) fields.fail(name, concat("the adapter in '", options.lora_adapter, "' has ", value));
  };
  LoraOptions lora = from;
  lora.r = fields.size("r", from.r);
  check_same("r", lora.r == from.r, from.r);
  lora.alpha = fields.number("alpha", from.alpha);
  if (lora.alpha <= 0) fields.fail("alpha", "must be positive");
  check_same("alpha", lora.alpha == from.alpha, from.alpha);
  lora.dropout = fields.probability("dropout", from.dropout);
  lora.use_rslora = fields.boolean("use_rslora", from.use_rslora);
  check_same("use_rslora", lora.use_rslora == from.use_rslora, from.use_rslora ? "true" : "false");
  if (fields.has("target_modules")) {
    lora.target_modules = fields.text_or_texts("target_modules");
    if (lora.target_modules.empty()) fields.fail("target_modules", "must name at least one module");
    const auto as_set = [](const std::vector<std::string>& names) { return std::set(names.begin(), names.end()); };
    check_same("target_modules", as_set(lora.target_modules) == as_set(from.target_modules),
               nlohmann::json(from.target_modules).dump());
  }
  fields.finish(/*strict=*/true);
  options.lora = lora;
}

void check_lora_fits(const Fields& fields, const TrainOptions& options) {
  if (!options.lora) return;
  if (options.from_scratch)
    fields.fail("from_scratch", "must not be there beside \"lora\": an adapter needs the weights it was trained with");
  if (!options.freeze.empty())
    fields.fail("freeze", "must not be there beside \"lora\": nothing but the adapters is trained");
}

TrainOptions read_train(const nlohmann::json& train, const std::string& source) {
  Fields fields(train, source, "train.");
  TrainOptions options;
  options.model = fields.path("model");
  options.output = fields.path("output");
  options.from_scratch = fields.boolean("from_scratch", false);
  options.seed = static_cast<uint64_t>(fields.integer("seed", 0));
  options.device = fields.text("device", options.device);
  options.rows.seed = options.seed;
  options.log_every = fields.positive("log_every", 10);
  read_length_of_run(fields, options);
  std::optional<Fields> data = fields.object("data");
  if (!data) fields.fail("data", "is missing: an object with \"train\" and \"length\"");
  read_data(*data, options);
  if (std::optional<Fields> evaluation = fields.object("evaluation")) read_evaluation(*evaluation, options);
  if (std::optional<Fields> checkpoints = fields.object("checkpoints")) read_checkpoints(*checkpoints, options);
  if (options.checkpoints.empty()) options.checkpoints = options.output + "/checkpoints";
  options.recompute_every = read_recompute(fields, train);
  if (std::optional<Fields> samples = fields.object("samples")) {
    options.sample_prompts = samples->texts("prompts");
    options.sample_tokens = samples->positive("tokens", options.sample_tokens);
    samples->finish(/*strict=*/true);
  }
  options.freeze = fields.texts("freeze");
  if (std::optional<Fields> lora = fields.object("lora")) read_lora(*lora, options);
  check_lora_fits(fields, options);
  options.export_dtype = fields.text("export_dtype", "F32");
  if (options.export_dtype != "F32" && options.export_dtype != "BF16" && options.export_dtype != "F16")
    fields.fail("export_dtype", "must be F32, BF16 or F16");
  fields.finish(/*strict=*/true);
  return options;
}

// A schedule's "auto": only the run knows its own length.
void fill_total_steps(Json& config, const TrainOptions& options) {
  const Json::json_pointer where("/scheduler/params/total_num_steps");
  if (options.steps > 0 && config.contains(where) && config[where] == "auto") config[where] = options.steps;
}

// What engines in Python do by these blocks, a run without Python does anyway, or not at all.
void tell_blocks_of_metrics(ParsedConfig& parsed) {
  const auto tell = [&](const MetricFilesConfig& files, const char* block) {
    if (files.enabled)
      parsed.without_effect.push_back(
          concat(block, ": a run without Python always writes its metrics to train.output"));
  };
  tell(parsed.config.tensorboard, "tensorboard");
  tell(parsed.config.csv_monitor, "csv_monitor");
  if (parsed.config.wandb.enabled)
    parsed.without_effect.push_back(
        "wandb: a run without Python sends nothing to Weights & Biases; its metrics are in train.output/metrics.csv");
}

}  // namespace

TrainConfig parse_train_config(const std::string& json, const ConfigContext& context, const std::string& source) {
  try {
    Json whole = read_json(json);
    ZS_CHECK(whole.is_object() && whole.contains("train"),
             "there is no object \"train\", which names the model, the data and the output: see docs/train.md");
    const nlohmann::json train = nlohmann::json::parse(whole["train"].dump());
    whole.erase("train");
    const TrainOptions options = read_train(train, source);
    fill_total_steps(whole, options);
    ParsedConfig parsed = parse_config(whole.dump(), context);
    tell_blocks_of_metrics(parsed);
    return {options, std::move(parsed)};
  } catch (const ConfigError& error) {
    throw ConfigError(concat(source, ": ", error.what()));
  }
}

}  // namespace zeroshard

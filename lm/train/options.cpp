#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/read_text.h"
#include "config/json_text.h"
#include "train/models/fields.h"
#include "train/option_keys.h"
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
}

void read_evaluation(Fields& fields, TrainOptions& options) {
  options.evaluate_every = fields.integer("every", 0);
  options.evaluation_rows = fields.integer("rows", 0);
  options.patience = fields.integer("patience", 0);
}

void read_checkpoints(Fields& fields, TrainOptions& options) {
  options.checkpoint_every = fields.integer("every", 0);
  options.checkpoints = fields.path("folder", "");
}

// Reads "activation_checkpointing" and returns the value for TrainOptions::recompute_every: 0 for "none", 1 for "full",
// and k for {"every": k}.
int64_t read_recompute(Fields& fields, const nlohmann::json& train) {
  const auto found = train.find("activation_checkpointing");
  if (found == train.end() || !found->is_object()) {
    const std::string text = fields.text("activation_checkpointing", "none");
    if (text != "none" && text != "full")
      fields.fail("activation_checkpointing", "must be \"none\", \"full\" or {\"every\": k}");
    return text == "full" ? 1 : 0;
  }
  return fields.object("activation_checkpointing")->positive("every");
}

void read_length_of_run(Fields& fields, TrainOptions& options) {
  options.steps = fields.integer("steps", 0);
  options.epochs = fields.number("epochs", 0.0);
  if (options.epochs < 0) fields.fail("epochs", "must be positive");
  if ((options.steps > 0) == (options.epochs > 0))
    fields.fail("steps", "exactly one of \"steps\" and \"epochs\" says how long to train");
}

// Reads "lora". With "adapter", the defaults are the values in the adapter_config.json of the adapter's directory. A
// given r, alpha, use_rslora or target_modules must then be equal to the value there.
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
  }
  options.freeze = fields.texts("freeze");
  if (std::optional<Fields> lora = fields.object("lora")) read_lora(*lora, options);
  check_lora_fits(fields, options);
  options.export_dtype = fields.text("export_dtype", "F32");
  if (options.export_dtype != "F32" && options.export_dtype != "BF16" && options.export_dtype != "F16")
    fields.fail("export_dtype", "must be F32, BF16 or F16");
  return options;
}

// The smallest configuration, for error messages.
constexpr const char* kSmallest =
    R"({"model": "DIR", "output": "DIR", "steps": 1000, "data": {"train": ["corpus.txt"], "length": 1024}})";

// Returns the hidden size in the model's config.json. Returns nothing if the file has none or cannot be read, because
// make_model() reports that later.
std::optional<int64_t> hidden_size_of(const std::string& model) {
  try {
    const auto config = nlohmann::json::parse(zeroshard::read_text(model + "/config.json"), nullptr, false);
    for (const char* name : {"hidden_size", "n_embd"}) {
      if (!config.is_object() || !config.contains(name) || !config.at(name).is_number_integer()) continue;
      const auto size = config.at(name).get<int64_t>();
      if (size >= 1 && size <= kMostSize) return size;
    }
  } catch (const IoError&) {
  }
  return std::nullopt;
}

// The keys that only Python's engine reads. Each comes with a text that says what a run without Python does instead.
constexpr std::pair<const char*, const char*> kKeysOfPython[] = {
    {"steps_per_print", "train.log_every says how often a line is printed"},
    {"wall_clock_breakdown", "the lines of train.log_every tell the pace"},
    {"dataloader_drop_last", "a run's batches are always whole: rows of the next epoch follow"},
    {"zero_allow_untested_optimizer", "the optimizers are zeroshard's own"},
    {"fp16.auto_cast", "the inputs are tokens, and nothing is cast"},
    {"bf16.auto_cast", "the inputs are tokens, and nothing is cast"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "train.export_dtype says what is written at the end"},
    {"activation_checkpointing", "train.activation_checkpointing recomputes activations"},
};

void tell_keys_of_python(ParsedConfig& parsed) {
  for (const auto& [key, instead] : kKeysOfPython) {
    const std::string path = key;
    bool is_told = false;
    for (std::string& line : parsed.without_effect) {
      if (!line.starts_with(path + " = ")) continue;
      line = line.substr(0, line.find(": ", path.size())) + ": " + instead;
      is_told = true;
    }
    for (const ConfigValue& value : parsed.values) {
      const bool is_set = value.path == path && value.origin.starts_with("file") && value.value != "false";
      if (is_set && !is_told) parsed.without_effect.push_back(concat(path, " = ", value.value, ": ", instead));
    }
  }
}

// If a schedule's total_num_steps is "auto", replaces it by the number of steps of the run. If train.epochs is given,
// that number depends on the data. The new value is then a placeholder, which train() must replace after it has read
// the data, and the function returns true. In all other cases it returns false.
bool fill_total_steps(Json& config, const TrainOptions& options) {
  const Json::json_pointer where("/scheduler/params/total_num_steps");
  if (!config.contains(where) || config[where] != "auto") return false;
  config[where] = std::max<int64_t>(1, options.steps);
  return options.steps == 0;
}

// Adds the metrics' keys that have no effect to parsed.without_effect. A run without Python always writes its metrics
// to files, and never sends them.
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

void tell_unused_offload(const TrainOptions& options, ParsedConfig& parsed) {
  if (parsed.config.offload.activations == OffloadConfig::Activations::kNone || options.recompute_every > 0) return;
  parsed.without_effect.push_back(
      "zeroshard.offload.activations: is for checkpointed layers, and train.activation_checkpointing checkpoints none");
}

}  // namespace

TrainConfig parse_train_config(const std::string& json, const ConfigContext& context, const std::string& source) {
  try {
    Json whole = read_json(json);
    const Json train = whole.is_object() ? whole.value("train", Json()) : Json();
    if (!train.is_object())
      throw ConfigError(concat(
          "there is no object \"train\", which says what to train on what. The smallest: ", "\"train\": ", kSmallest));
    whole.erase("train");
    refuse_unknown_options(train);
    const TrainOptions options = read_train(nlohmann::json::parse(train.dump()), source);
    const bool schedule_ends_with_run = fill_total_steps(whole, options);
    ConfigContext with_model = context;
    if (!with_model.hidden_size) with_model.hidden_size = hidden_size_of(options.model);
    ParsedConfig parsed = parse_config(whole.dump(), with_model);
    if (!parsed.config.optimizer)
      throw ConfigError(R"(the key optimizer is missing: add "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}})");
    tell_keys_of_python(parsed);
    tell_unused_offload(options, parsed);
    tell_blocks_of_metrics(parsed);
    return {options, std::move(parsed), schedule_ends_with_run};
  } catch (const ConfigError& error) {
    throw ConfigError(concat(source, ": ", error.what()));
  }
}

}  // namespace zeroshard

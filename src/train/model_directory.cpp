#include "train/model_directory.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/check.h"
#include "file/durable.h"
#include "train/models/lora_config.h"

namespace zeroshard {
namespace {

// What transformers reads beside the weights, as far as a directory has it.
constexpr const char* kCompanions[] = {"generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "tokenizer.model",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja"};

std::optional<std::string> read_if_there(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && !file.eof()) throw IoError(concat("cannot read '", path, "'"));
  return text;
}

std::string with_dtype(const std::string& config, const std::string& dtype) {
  auto json = nlohmann::ordered_json::parse(config);
  const char* const name = dtype == "BF16" ? "bfloat16" : dtype == "F16" ? "float16" : "float32";
  json[json.contains("torch_dtype") ? "torch_dtype" : "dtype"] = name;
  return json.dump(2) + "\n";
}

void write_directory(const ModelExport& what, ExportOptions weights, const char* config_name,
                     const std::string& config) {
  weights.dtype = what.dtype;
  export_weights(what.checkpoints, what.output, weights);
  Directory output = Directory::create(posix_io(), what.output);
  for (const char* name : kCompanions)
    if (const auto text = read_if_there(concat(what.model, '/', name))) write_small_file(output, name, *text);
  write_small_file(output, config_name, config);
}

}  // namespace

void write_model_directory(const ModelExport& what, ExportOptions weights) {
  const std::optional<std::string> config = read_if_there(what.model + "/config.json");
  if (!config) throw IoError(concat("cannot read '", what.model, "/config.json'"));
  write_directory(what, std::move(weights), "config.json", with_dtype(*config, what.dtype));
}

void write_adapter_directory(const ModelExport& what, ExportOptions weights, const std::string& config) {
  write_directory(what, std::move(weights), kAdapterConfig, config);
}

}  // namespace zeroshard

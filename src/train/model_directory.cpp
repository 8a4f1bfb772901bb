#include "train/model_directory.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/format.h"
#include "base/read_text.h"
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
  for (const char* name : kCompanions) {
    const std::string path = concat(what.model, '/', name);
    if (std::filesystem::exists(path)) write_small_file(output, name, read_text(path));
  }
  write_small_file(output, config_name, config);
}

}  // namespace

void write_model_directory(const ModelExport& what, ExportOptions weights) {
  const std::string config = read_text(what.model + "/config.json");
  write_directory(what, std::move(weights), "config.json", with_dtype(config, what.dtype));
}

void write_adapter_directory(const ModelExport& what, ExportOptions weights, const std::string& config) {
  write_directory(what, std::move(weights), kAdapterConfig, config);
}

}  // namespace zeroshard

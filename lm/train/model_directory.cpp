#include "train/model_directory.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/read_text.h"
#include "file/durable.h"
#include "train/models/lora_config.h"
#include "zeroshard/checkpoint_files.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;

// The other files that transformers reads, if a directory has them; and *.model, of SentencePiece.
constexpr const char* kCompanions[] = {"generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
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

// The generation config that transformers makes from a config.json if the model has none.
std::string generation_config_of(const std::string& config) {
  const auto json = nlohmann::ordered_json::parse(config);
  nlohmann::ordered_json generation{{"_from_model_config", true}};
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (json.contains(name) && !json[name].is_null()) generation[name] = json[name];
  return generation.dump(2) + "\n";
}

using Files = std::map<std::string, std::string>;  // name: contents

constexpr int64_t kMaxCompanionBytes = int64_t{1} << 30;  // as tokenizers are read

Files companions(const std::string& directory) {
  Files files;
  for (const char* name : kCompanions) {
    const fs::path path = fs::path(directory) / name;
    if (fs::exists(path)) files[name] = read_text(path.string(), "", kMaxCompanionBytes);
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".model")
      files[entry.path().filename().string()] = read_text(entry.path().string(), "", kMaxCompanionBytes);
  return files;
}

void write_directory(const ModelExport& what, ExportOptions weights, const Files& files, const char* config_name,
                     const std::string& config) {
  weights.dtype = what.dtype;
  export_weights(what.checkpoints, what.output, weights);
  Directory output = Directory::create(shared_posix_io(), what.output);
  for (const auto& [name, contents] : files) write_small_file(output, name, contents);
  write_small_file(output, config_name, config);
}

}  // namespace

void check_output(const std::string& model, const std::string& output, const std::string& checkpoints) {
  std::error_code none;  // a folder that does not exist is not another one
  ZS_CHECK(!fs::equivalent(model, output, none), "train.output is '", output,
           "', the directory of train.model: its weights would be overwritten. Name another folder");
  if (fs::is_directory(model, none))
    companions(model);  // files that cannot be copied are reported now, not after the training
  if (fs::is_directory(checkpoints, none) && !list_checkpoints(checkpoints).empty()) return;
  for (const char* name : {"config.json", kAdapterConfig})
    ZS_CHECK(!fs::exists(fs::path(output) / name), "train.output is '", output, "', which holds a model (", name,
             "), and there is no checkpoint in '", checkpoints,
             "' to go on from: it would be overwritten. Name another folder, or delete it");
}

void write_model_directory(const ModelExport& what, ExportOptions weights) {
  const std::string config = read_text(what.model + "/config.json");
  Files files = companions(what.model);
  files.emplace("generation_config.json", generation_config_of(config));  // unless the model has its own
  write_directory(what, std::move(weights), files, "config.json", with_dtype(config, what.dtype));
}

void write_adapter_directory(const ModelExport& what, ExportOptions weights, const std::string& config) {
  write_directory(what, std::move(weights), companions(what.model), kAdapterConfig, config);
}

}  // namespace zeroshard

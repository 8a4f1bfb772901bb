#include "train/model_directory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "base/read_text.h"
#include "checkpoint/export_names.h"
#include "file/durable.h"
#include "train/models/lora_config.h"
#include "zeroshard/checkpoint_files.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;

// The names of the files that transformers reads from a model's directory, besides config.json and the weights. A run
// copies these files and the files of SentencePiece, *.model.
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

// Returns a text for generation_config.json, for a model without that file. Makes it from `config`, the text of
// config.json, as transformers does.
std::string generation_config_of(const std::string& config) {
  const auto json = nlohmann::ordered_json::parse(config);
  nlohmann::ordered_json generation{{"_from_model_config", true}};
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (json.contains(name) && !json[name].is_null()) generation[name] = json[name];
  return generation.dump(2) + "\n";
}

using Files = std::map<std::string, std::string>;  // name -> contents

constexpr int64_t kMaxCompanionBytes = int64_t{1} << 30;  // the limit that load_tokenizer() also has

std::vector<fs::path> companion_paths(const std::string& directory) {
  std::vector<fs::path> paths;
  for (const char* name : kCompanions)
    if (const fs::path path = fs::path(directory) / name; fs::exists(path)) paths.push_back(path);
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".model") paths.push_back(entry.path());
  return paths;
}

Files companions(const std::string& directory) {
  Files files;
  for (const fs::path& path : companion_paths(directory))
    files[path.filename().string()] = read_text(path.string(), "", kMaxCompanionBytes);
  return files;
}

bool is_below(const fs::path& path, const fs::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first == directory.end();
}

void write_directory(const ModelExport& what, ExportOptions weights, const Files& files, const char* config_name,
                     const std::string& config) {
  weights.dtype = what.dtype;
  export_weights(what.checkpoints, what.output, weights);
  Directory output = Directory::create(shared_posix_io(), what.output);
  for (const auto& [name, contents] : files) write_small_file(output, name, contents);
  write_small_file(output, config_name, config);
}

// Returns the name of a file in `output` that a run with the files `copied` could overwrite at its end, or "" if there
// is none.
std::string file_of_model(const std::string& output, const Files& copied) {
  const std::optional<Directory> directory = Directory::open_if_there(shared_posix_io(), output);
  if (!directory) return "";
  std::vector<std::string> names = {"config.json", kAdapterConfig, "generation_config.json"};
  for (const auto& [name, contents] : copied) names.push_back(name);
  for (const std::string& name : names)
    if (directory->exists(name)) return name;
  for (const char* stem : {"model", "adapter_model"})
    if (const std::vector<std::string> exports = list_exports(*directory, stem); !exports.empty())
      return exports.front();
  return "";
}

}  // namespace

void check_output(const std::string& model, const std::string& output, const std::string& checkpoints) {
  std::error_code none;  // the functions that get it return false on an error
  ZS_CHECK(!fs::equivalent(model, output, none), "train.output is '", output,
           "', the directory of train.model: its weights would be overwritten. Name another folder");
  // Reads the files now, so that a file that cannot be read is an error before the training.
  const Files copied = fs::is_directory(model, none) ? companions(model) : Files();
  if (fs::is_directory(checkpoints, none) && !list_checkpoints(checkpoints).empty()) return;
  const std::string found = file_of_model(output, copied);
  ZS_CHECK(found.empty(), "train.output is '", output, "', which holds '", found, "', a file of a model, and there is ",
           "no checkpoint in '", checkpoints,
           "' to go on from: it would be overwritten. Name another folder, or delete the file");
}

std::string links_out_of(const std::string& model) {
  const fs::path inside = fs::canonical(model), blobs = inside.parent_path().parent_path() / "blobs";
  std::string links;
  for (const fs::path& path : companion_paths(model)) {
    const fs::path target = fs::canonical(path);
    if (is_below(target, inside) || (inside.parent_path().filename() == "snapshots" && is_below(target, blobs)))
      continue;
    links += concat(links.empty() ? "" : ", ", path.filename().string(), " (", target.string(), ")");
  }
  return links;
}

void write_model_directory(const ModelExport& what, ExportOptions weights) {
  const std::string config = read_text(what.model + "/config.json");
  Files files = companions(what.model);
  files.emplace("generation_config.json", generation_config_of(config));  // has no effect if the model has this file
  write_directory(what, std::move(weights), files, "config.json", with_dtype(config, what.dtype));
}

void write_adapter_directory(const ModelExport& what, ExportOptions weights, const std::string& config) {
  write_directory(what, std::move(weights), companions(what.model), kAdapterConfig, config);
}

}  // namespace zeroshard

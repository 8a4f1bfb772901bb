#include <filesystem>

#include "base/check.h"
#include "base/read_text.h"
#include "tokenizer/json_field.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "zeroshard/tokenizer.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using Json = JsonField::Json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

std::string read_file(const fs::path& path) {
  return read_text(path.string(), ": a tokenizer is a regular file of at most 1 GiB", kMaxFileBytes);
}

Json read_json(const fs::path& path) {
  return parse_json(read_file(path), path.string());
}

// Returns the tokenizer's file. `path` is that file or a directory that has it. Throws IoError if there is none, or if
// a directory has several *.model and no tokenizer.json or tokenizer.model.
fs::path file_of(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error))
    throw IoError(concat("there is no '", path.string(), "', expected a tokenizer, or a directory that has one"));
  if (!fs::is_directory(path, error)) return path;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::exists(path / name, error)) return path / name;
  std::vector<fs::path> models;
  for (const auto& entry : fs::directory_iterator(path, error))
    if (entry.path().extension() == ".model") models.push_back(entry.path());
  if (models.size() == 1) return models[0];
  throw IoError(concat("'", path.string(), "' has no tokenizer.json and ", models.size(),
                       " SentencePiece models (*.model). Keep exactly one tokenizer in the directory, or give the path "
                       "of its file"));
}

// The settings that Hugging Face keeps for a tokenizer in another file of the same directory: tokenizer_config.json or,
// if there is none, special_tokens_map.json. `json` is null if there is neither.
struct Settings {
  explicit Settings(const fs::path& file) {
    std::error_code error;
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      path = file.parent_path() / name;
      if (!fs::exists(path, error)) continue;
      json = read_json(path);
      return;
    }
  }
  JsonField field() const { return {json, path.string()}; }
  bool has(const char* key) const { return !json.is_null() && field().has(key); }
  bool boolean_or(const char* key, bool otherwise) const {
    return json.is_null() ? otherwise : field().boolean_or(key, otherwise);
  }
  // Returns the token under `key`, which the settings write as "</s>" or as {"content": "</s>"}. Returns "" if there is
  // none.
  std::string token(const char* key) const {
    if (!has(key)) return {};
    const JsonField value = field()[key];
    return value.json().is_object() ? value["content"].string() : value.string();
  }

  fs::path path;
  Json json;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const fs::path file = file_of(path);
  const Settings settings(file);
  if (file.extension() == ".json") {
    return std::make_unique<JsonTokenizer>(read_json(file), file.string(),
                                           BoundaryTokens{settings.token("bos_token"), settings.token("eos_token")});
  }
  const SentencePieceTokenizer::Options options{settings.boolean_or("add_bos_token", true),
                                                settings.boolean_or("add_eos_token", false)};
  return std::make_unique<SentencePieceTokenizer>(parse_sentencepiece(read_file(file), file.string()), file.string(),
                                                  options);
}

}  // namespace zeroshard

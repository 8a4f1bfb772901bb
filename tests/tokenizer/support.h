#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"
#include "zeroshard/error.h"

namespace zeroshard::testing {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// Characters a to e, some merges, U+2581, one token of each special kind.
inline Json small_tokenizer() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 20, "content": "<s>", "special": true, "normalized": false},
      {"id": 21, "content": "dd", "special": false, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "unk_token": "?", "fuse_unk": false,
      "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "d": 4, "\u2581": 5, "ab": 6, "abc": 7, "\u2581a": 8, "cc": 9, "é": 10},
      "merges": ["a b", ["ab", "c"], "▁ a", "c c"]}})");
}

// A Unigram model of some letters; of its added tokens one is in the vocabulary.
inline Json small_unigram() {
  return Json::parse(R"({
    "added_tokens": [{"id": 1, "content": "</s>", "special": true}, {"id": 9, "content": "<x>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
      "vocab": [["<unk>", 0], ["</s>", 0.0], ["a", -2.5], ["b", -3], ["ab", -4.5], ["\u2581a", -5.0], ["é", -6]]}})");
}

inline std::unique_ptr<Tokenizer> make(const Json& json) {
  return std::make_unique<JsonTokenizer>(json, "tokenizer.json", BoundaryTokens{});
}

// A tokenizer of all bytes, in GPT-2's alphabet, with the merges given as pairs of what they join.
inline Json byte_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json vocab = Json::object(), merged = Json::array();
  int shifted = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string character;
    append_utf8(character, static_cast<char32_t>(printable ? byte : shifted++));
    vocab[character] = byte;
  }
  for (const auto& [left, right] : merges) {
    merged.push_back({left, right});
    vocab[left + right] = vocab.size();
  }
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"added_tokens", Json::array()},
          {"pre_tokenizer", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merged}}}};
}

// What `call` throws, as text; empty when it throws nothing.
template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "zeroshard-tokenizer-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string put(const std::string& name, const std::string& contents) const {
    std::ofstream(path_ / name, std::ios::binary) << contents;
    return (path_ / name).string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace zeroshard::testing

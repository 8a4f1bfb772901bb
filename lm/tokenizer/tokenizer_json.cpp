#include "tokenizer/tokenizer_json.h"

#include <algorithm>

#include "tokenizer/byte_level.h"
#include "tokenizer/tokenizer_json_model.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

std::string digest_of(const JsonField& root, const TokenList& tokens) {
  TokenizerDigest digest;
  digest.add(tokens);
  add_to_digest(root["model"], digest);
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "added_tokens"})
    digest.add(root.optional(key).json().dump(-1, ' ', true, JsonField::Json::error_handler_t::replace));
  return digest.text();
}

std::optional<int32_t> boundary(const TokenList& tokens, const std::string& text, const char* key) {
  if (text.empty()) return std::nullopt;
  const auto id = tokens.id_of(text);
  ZS_CHECK(id, key, " '", text, "' is not in the vocabulary");
  return id;
}

}  // namespace

JsonTokenizer::JsonTokenizer(const JsonField::Json& file, const std::string& name, const BoundaryTokens& boundaries)
    : JsonTokenizer(JsonField(file, name), boundaries) {}

JsonTokenizer::JsonTokenizer(const JsonField& root, const BoundaryTokens& boundaries)
    : tokens_(read_tokens(root)),
      normalizer_(root.optional("normalizer")),
      pre_tokenizer_(root.optional("pre_tokenizer")),
      model_(read_model(root["model"], pre_tokenizer_.byte_level())),
      decoder_(root.optional("decoder")) {
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  for (const char* key : {"truncation", "padding"})
    if (root.has(key)) root[key].refuse("texts are given whole; set it to null");
  special_.resize(static_cast<size_t>(tokens_.size()), 0);
  read_added_tokens(root);
  around_ = read_post_processor(root.optional("post_processor"), tokens_.size());
  if (decoder_.byte_level_only()) {
    for (int32_t id = 0; id < tokens_.size(); ++id) {
      const std::string text = tokens_.has(id) ? tokens_.text(id) : std::string();
      bytes_.push_back(from_byte_alphabet(text).value_or(text));
    }
  }
  bos_ = boundary(tokens_, boundaries.bos, "bos_token");
  eos_ = boundary(tokens_, boundaries.eos, "eos_token");
  digest_ = digest_of(root, tokens_);
}

void JsonTokenizer::read_added_tokens(const JsonField& root) {
  if (!root.has("added_tokens")) return;
  std::vector<std::pair<bool, AddedTokens::Token>> read;
  root["added_tokens"].each([&](const JsonField& field) {
    field.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedTokens::Token token;
    token.content = field["content"].string();
    token.id = static_cast<int32_t>(field["id"].integer(0, tokens_.size() - 1));
    token.special = field.boolean_or("special", false);
    token.single_word = field.boolean_or("single_word", false);
    token.lstrip = field.boolean_or("lstrip", false);
    token.rstrip = field.boolean_or("rstrip", false);
    if (token.content.empty()) field.refuse("a token must have contents");
    if (tokens_.id_of(token.content).value_or(token.id) != token.id) {
      field.refuse(concat("the vocabulary has this token as ", *tokens_.id_of(token.content)));
    }
    if (!tokens_.set(token.id, token.content)) {
      field.refuse(concat("its id is that of '", tokens_.text(token.id), "'"));
    }
    special_[static_cast<size_t>(token.id)] = token.special ? 1 : 0;
    read.emplace_back(field.boolean_or("normalized", !token.special), std::move(token));
  });
  // Puts special tokens first, because insert() keeps only the first of two tokens that are equal when normalized.
  std::stable_partition(read.begin(), read.end(), [](const auto& one) { return one.second.special; });
  Workspace workspace;
  for (auto& [normalized, token] : read) {
    const std::string text(normalized ? normalizer_.apply(token.content, workspace) : token.content);
    ZS_CHECK(!text.empty(), "the added token '", token.content, "' is empty when normalized");
    (normalized ? added_normalized_ : added_).insert(text, token);
  }
}

std::vector<int32_t> JsonTokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  const WorkspacePool::Lease lease(workspaces_);
  Workspace& workspace = *lease;
  text = well_formed_utf8(text, workspace.well_formed);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (add_special) ids = around_.before;
  added_.cut(
      text, parse_special,
      [&](size_t begin, size_t end) {
        encode_part(text.substr(begin, end - begin), begin == 0, parse_special, workspace, ids);
      },
      [&](int32_t id) { ids.push_back(id); });
  if (add_special) ids.insert(ids.end(), around_.after.begin(), around_.after.end());
  return ids;
}

void JsonTokenizer::encode_part(std::string_view part, bool at_start, bool parse_special, Workspace& workspace,
                                std::vector<int32_t>& ids) const {
  part = normalizer_.apply(part, workspace);
  const auto word = [&](std::string_view text) { encode_word(model_, text, workspace.model, ids); };
  added_normalized_.cut(
      part, parse_special,
      [&](size_t begin, size_t end) {
        pre_tokenizer_.each_word(part.substr(begin, end - begin), at_start && begin == 0, workspace, word);
      },
      [&](int32_t id) { ids.push_back(id); });
}

std::string JsonTokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  const auto skipped = [&](int32_t id) { return skip_special && special_[static_cast<size_t>(id)] != 0; };
  std::string text;
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    const std::string& token = tokens_.text(id);
    if (skipped(id)) continue;
    if (bytes_.empty()) {
      tokens.push_back(token);
    } else {
      text += bytes_[static_cast<size_t>(id)];
    }
  }
  return bytes_.empty() ? decoder_.decode(std::move(tokens)) : text;
}

}  // namespace zeroshard

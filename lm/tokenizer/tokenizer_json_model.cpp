#include "tokenizer/tokenizer_json_model.h"

#include <algorithm>

#include "tokenizer/tokenizer_json_bpe.h"
#include "tokenizer/tokenizer_json_unigram.h"

namespace zeroshard {
namespace {

// Returns the largest allowed id. Ids may have gaps, but the limit keeps a file from making zeroshard allocate memory
// for many more ids than tokens.
int64_t most_ids(size_t tokens) {
  return static_cast<int64_t>(tokens) * 8 + 65536;
}

bool is_unigram(const JsonField& model) {
  const std::string type = model.type();
  if (type != "BPE" && type != "Unigram") model["type"].refuse("of models, BPE and Unigram are");
  return type == "Unigram";
}

// Returns the largest id in the vocabulary {"token": id, ...}, plus 1.
int64_t size_of_bpe(const JsonField& vocab, int64_t most) {
  if (!vocab.json().is_object()) vocab.refuse("it must be an object of tokens and ids");
  int64_t size = 0;
  for (const auto& [text, id] : vocab.json().items()) {
    if (!JsonField::is_integer(id, 0, most)) vocab.member(text, id).refuse(concat("ids are from 0 to ", most));
    size = std::max(size, 1 + id.get<int64_t>());
  }
  return size;
}

void add_bpe_tokens(const JsonField& vocab, TokenList& tokens) {
  for (const auto& [text, id] : vocab.json().items()) {
    const auto value = id.get<int32_t>();
    if (!tokens.set(value, text))
      vocab.member(text, id).refuse(concat("it is the id of '", tokens.text(value), "' too"));
  }
}

}  // namespace

TokenList read_tokens(const JsonField& root) {
  const JsonField model = root["model"], vocab = model["vocab"];
  const bool unigram = is_unigram(model);
  if (unigram) check_unigram_vocabulary(vocab);
  const size_t added = root.has("added_tokens") ? root["added_tokens"].json().size() : 0;
  const int64_t most = most_ids(vocab.json().size() + added);
  int64_t size = unigram ? static_cast<int64_t>(vocab.json().size()) : size_of_bpe(vocab, most);
  if (root.has("added_tokens")) {
    root["added_tokens"].each([&](const JsonField& token) { size = std::max(size, 1 + token["id"].integer(0, most)); });
  }
  TokenList tokens(size);
  unigram ? add_unigram_tokens(vocab, tokens) : add_bpe_tokens(vocab, tokens);
  return tokens;
}

SubwordModel read_model(const JsonField& model, bool byte_level) {
  if (is_unigram(model)) return read_unigram(model, byte_level);
  return read_bpe(model, byte_level);
}

void add_to_digest(const JsonField& model, TokenizerDigest& digest) {
  is_unigram(model) ? add_unigram_to_digest(model, digest) : add_bpe_to_digest(model, digest);
}

}  // namespace zeroshard

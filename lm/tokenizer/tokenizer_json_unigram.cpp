#include "tokenizer/tokenizer_json_unigram.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "tokenizer/byte_fallback.h"
#include "tokenizer/byte_level.h"

namespace zeroshard {
namespace {

const std::string& text_of(const JsonField::Json& entry) {
  return entry[0].get_ref<const std::string&>();
}
double score_of(const JsonField::Json& entry) {
  return entry[1].get<double>();
}

bool is_entry(const JsonField::Json& entry) {
  return entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number() &&
         text_of(entry).size() <= Unigram::kMaxPieceBytes;
}

}  // namespace

void check_unigram_vocabulary(const JsonField& vocab) {
  if (!vocab.json().is_array() || vocab.json().empty()) vocab.refuse("it must be an array of tokens and scores");
  for (size_t id = 0; id < vocab.json().size(); ++id) {
    if (is_entry(vocab.json()[id])) continue;
    vocab.element(id).refuse(concat("it must be a token of at most ", Unigram::kMaxPieceBytes, " bytes and its score"));
  }
}

void add_unigram_tokens(const JsonField& vocab, TokenList& tokens) {
  int32_t id = 0;
  for (const JsonField::Json& entry : vocab.json()) tokens.set(id++, text_of(entry));
}

Unigram read_unigram(const JsonField& model, bool byte_level) {
  model.allow_only({"type", "unk_id", "vocab", "byte_fallback", "alpha", "nbest_size"});
  for (const char* key : {"alpha", "nbest_size"})
    if (model.has(key)) model[key].refuse("no sampling is");
  const JsonField vocab = model["vocab"];
  StringTable ids(vocab.json().size());  // ids by the tokens as tokenizer.json spells them
  Unigram::Parts parts;
  parts.flavor = Unigram::Flavor::kHuggingFace;
  parts.byte_units = byte_level;
  double lowest = std::numeric_limits<double>::infinity();
  for (const JsonField::Json& entry : vocab.json()) {
    const std::string& text = text_of(entry);
    lowest = std::min(lowest, score_of(entry));
    ids.insert(text, static_cast<int32_t>(parts.pieces.size()));
    parts.pieces.push_back({byte_level ? from_byte_alphabet(text).value_or("") : text, score_of(entry)});
  }
  parts.unknown_score = lowest - Unigram::kUnknownPenalty;
  if (model.has("unk_id")) {
    const auto most = static_cast<int64_t>(parts.pieces.size()) - 1;
    parts.unknown_id = static_cast<int32_t>(model["unk_id"].integer(0, most));
  }
  parts.bytes = read_byte_fallback(model, ids, byte_level);
  return Unigram(std::move(parts));
}

void add_unigram_to_digest(const JsonField& model, TokenizerDigest& digest) {
  digest.add("Unigram");
  for (const JsonField::Json& entry : model["vocab"].json()) digest.add(std::bit_cast<int64_t>(score_of(entry)));
  digest.add(model.has("unk_id") ? model["unk_id"].json().get<int64_t>() : -1);
  digest.add(static_cast<int64_t>(model.boolean_or("byte_fallback", false)));
}

}  // namespace zeroshard

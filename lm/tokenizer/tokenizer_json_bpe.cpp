#include "tokenizer/tokenizer_json_bpe.h"

#include <optional>
#include <string>

#include "tokenizer/byte_fallback.h"
#include "tokenizer/byte_level.h"

namespace zeroshard {
namespace {

void check_options(const JsonField& model) {
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("dropout") && model["dropout"].json() != 0.0) model["dropout"].refuse("no dropout is");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.has(key) && !model[key].string().empty()) model[key].refuse("none is");
}

struct Parts {
  std::string_view left, right;
};

// Returns the two parts of a merge, which is written as "a b" or ["a", "b"]. Returns nothing for other values.
std::optional<Parts> parts_of(const JsonField::Json& merge) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) return std::nullopt;
    return Parts{text.substr(0, space), text.substr(space + 1)};
  }
  if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return std::nullopt;
  return Parts{merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
}

// Calls visit(left, right, index) for each merge. A JsonField takes time to make, because it has a path for messages,
// and there are hundreds of thousands of merges. So this function makes the JsonField of a merge only for an error.
template <typename Visit>
void each_merge(const JsonField& merges, const Visit& visit) {
  if (!merges.json().is_array()) merges.refuse("it must be an array");
  for (size_t i = 0; i < merges.json().size(); ++i) {
    const auto parts = parts_of(merges.json()[i]);
    if (!parts) merges.element(i).refuse("a merge has two parts");
    visit(parts->left, parts->right, i);
  }
}

bool has_every_byte(const StringTable& tokens) {
  for (int byte = 0; byte < 256; ++byte) {
    const char unit = static_cast<char>(static_cast<unsigned char>(byte));
    if (tokens.find({&unit, 1}) < 0) return false;
  }
  return true;
}

// Reads how unknown characters are encoded. `complete` says that every byte has a token. No character can be unknown
// then, so the function does nothing.
void read_unknown(const JsonField& model, const StringTable& ids, bool complete, bool byte_level,
                  Bpe::Unknown& unknown) {
  if (complete) return;
  if (model.has("unk_token")) {
    unknown.id = ids.find(model["unk_token"].string());
    if (unknown.id < 0) model["unk_token"].refuse("it must be in the vocabulary");
    unknown.fuse = model.boolean_or("fuse_unk", false);
  }
  unknown.bytes = read_byte_fallback(model, ids, byte_level);
}

// Returns whether a U+2581 in `text` comes directly after another character.
bool has_space_inside(std::string_view text) {
  constexpr std::string_view kSpace = "\xE2\x96\x81";
  for (size_t at = text.find(kSpace); at != text.npos; at = text.find(kSpace, at + 1))
    if (at > 0 && !text.substr(0, at).ends_with(kSpace)) return true;
  return false;
}

}  // namespace

Bpe read_bpe(const JsonField& model, bool byte_level) {
  check_options(model);
  const JsonField vocab = model["vocab"], merges = model["merges"];
  Bpe::Parts parts;
  parts.byte_units = byte_level;
  parts.ignore_merges = model.boolean_or("ignore_merges", false);
  parts.tokens = StringTable(vocab.json().size());
  StringTable ids(vocab.json().size());  // ids by the tokens as tokenizer.json spells them
  for (const auto& [text, value] : vocab.json().items()) {
    const auto id = value.get<int32_t>();
    ids.insert(text, id);
    if (!byte_level) {
      parts.tokens.insert(text, id);
    } else if (const auto bytes = from_byte_alphabet(text)) {
      parts.tokens.insert(*bytes, id);
    }
  }
  read_unknown(model, ids, byte_level && has_every_byte(parts.tokens), byte_level, parts.unknown);
  parts.merges = MergeTable(merges.json().size());
  parts.words_begin_at_space = !byte_level && !parts.ignore_merges && parts.tokens.find("\xE2\x96\x81") >= 0;
  int32_t rank = 0;
  std::string joined;
  each_merge(merges, [&](std::string_view left, std::string_view right, size_t index) {
    joined.assign(left).append(right);
    const int32_t left_id = ids.find(left), right_id = ids.find(right), id = ids.find(joined);
    if (left_id < 0 || right_id < 0 || id < 0) {
      merges.element(index).refuse("both parts and what they join to must be in the vocabulary");
    }
    parts.merges.insert(left_id, right_id, {rank++, id});
    if (has_space_inside(joined)) parts.words_begin_at_space = false;
  });
  return Bpe(std::move(parts));
}

void add_bpe_to_digest(const JsonField& model, TokenizerDigest& digest) {
  each_merge(model["merges"], [&](std::string_view left, std::string_view right, size_t) {
    digest.add(left);
    digest.add(right);
  });
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) digest.add(model.boolean_or(key, false));
  digest.add(model.has("unk_token") ? model["unk_token"].string() : "");
}

}  // namespace zeroshard

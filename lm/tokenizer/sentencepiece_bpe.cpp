#include "tokenizer/sentencepiece_bpe.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/check.h"
#include "tokenizer/sentencepiece_reserved.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

using Model = SentencePieceModel;
using Type = Model::Type;

constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";

void check(const Model& model, const std::string& name) {
  check_supported(model, name);
  for (const Model::Piece& piece : model.pieces) {
    ZS_CHECK(piece.type != Type::kUnused, "'", name, "': the piece '", piece.text,
             "' is UNUSED, which is not supported in a model of type BPE");
  }
}

// Returns the rank of each score. The highest score has rank 0.
std::map<float, int32_t, std::greater<>> ranks_of(const Model& model) {
  std::map<float, int32_t, std::greater<>> ranks;
  for (const Model::Piece& piece : model.pieces) ranks.emplace(piece.score, 0);
  int32_t rank = 0;
  for (auto& [score, value] : ranks) value = rank++;
  return ranks;
}

template <typename Visit>
void each_character(std::string_view text, const Visit& visit) {
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) visit(at, utf8_length(text[at]));
}

void add_extra_characters(const Model& model, Bpe::Parts& parts) {
  parts.first_extra = static_cast<int32_t>(model.pieces.size());
  for (const Model::Piece& piece : model.pieces) {
    if (!is_ordinary(piece)) continue;
    each_character(piece.text, [&](size_t at, size_t bytes) {
      const std::string character = piece.text.substr(at, bytes);
      if (parts.tokens.find(character) >= 0) return;
      parts.tokens.insert(character, parts.first_extra + static_cast<int32_t>(parts.extra.size()));
      parts.extra.push_back(character);
    });
  }
}

}  // namespace

Bpe bpe_of(const SentencePieceModel& model, const std::string& name) {
  check(model, name);
  const ReservedPieces reserved = reserved_pieces(model, name);
  Bpe::Parts parts;
  parts.unknown = {.id = reserved.unknown, .fuse = true, .after_merging = true, .bytes = reserved.bytes};
  parts.tokens = StringTable(model.pieces.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (is_ordinary(model.pieces[id])) parts.tokens.insert(model.pieces[id].text, static_cast<int32_t>(id));
  }
  parts.words_begin_at_space = parts.tokens.find(kVisibleSpace) >= 0;
  add_extra_characters(model, parts);
  const auto ranks = ranks_of(model);
  parts.merges = MergeTable(model.pieces.size() * 4);
  for (const Model::Piece& piece : model.pieces) {
    if (!is_ordinary(piece)) continue;
    const std::string_view text = piece.text;
    const Merge merge{ranks.at(piece.score), parts.tokens.find(text)};
    each_character(text, [&](size_t at, size_t) {
      if (at == 0) return;
      const int32_t left = parts.tokens.find(text.substr(0, at)), right = parts.tokens.find(text.substr(at));
      if (left >= 0 && right >= 0) parts.merges.insert(left, right, merge);
      const bool space_inside =
          text.substr(at).starts_with(kVisibleSpace) && !text.substr(0, at).ends_with(kVisibleSpace);
      if (space_inside) parts.words_begin_at_space = false;
    });
  }
  return Bpe(std::move(parts));
}

}  // namespace zeroshard

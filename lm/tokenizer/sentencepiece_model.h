#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// The fields of a SentencePiece model that a tokenizer needs.
struct SentencePieceModel {
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  enum class Kind { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

  std::vector<Piece> pieces;
  Kind kind = Kind::kUnigram;
  bool byte_fallback = false, treat_whitespace_as_suffix = false;
  std::string bos_piece = "<s>", eos_piece = "</s>";
  std::string unk_surface = " \xE2\x81\x87 ";  // text of a decoded unknown token
  std::string charsmap;                        // compiled normalization rules; empty: none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  bool has_denormalizer = false;
};

// Parses a model. Throws a ValueError that names `name` if the bytes are no SentencePiece model.
SentencePieceModel parse_sentencepiece(std::string_view bytes, const std::string& name);

}  // namespace zeroshard

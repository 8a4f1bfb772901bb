#pragma once
#include <cstdint>
#include <string>

#include "tokenizer/byte_token.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// Pieces that text consists of.
inline bool is_ordinary(const SentencePieceModel::Piece& piece) {
  return piece.type == SentencePieceModel::Type::kNormal || piece.type == SentencePieceModel::Type::kUserDefined;
}

// Throws ValueError naming `name` for unsupported settings of any type of model.
void check_supported(const SentencePieceModel& model, const std::string& name);

// The ids of pieces that are not text.
struct ReservedPieces {
  int32_t unknown = -1;
  ByteIds bytes = no_byte_ids();  // all or none
};

// Throws ValueError naming `name` if they contradict the model.
ReservedPieces reserved_pieces(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <string>

#include "tokenizer/byte_token.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// Pieces that text is made of.
inline bool is_ordinary(const SentencePieceModel::Piece& piece) {
  return piece.type == SentencePieceModel::Type::kNormal || piece.type == SentencePieceModel::Type::kUserDefined;
}

// Throws ValueError naming `name` for settings that are not supported, whatever the type of the model.
void check_supported(const SentencePieceModel& model, const std::string& name);

// The ids of what is no piece of text.
struct ReservedPieces {
  int32_t unknown = -1;
  ByteIds bytes = no_byte_ids();  // all or none
};

// Throws ValueError naming `name` when they are not as the model says.
ReservedPieces reserved_pieces(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <string>

#include "tokenizer/byte_token.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// Returns whether the piece stands for text, unlike a control token.
inline bool is_ordinary(const SentencePieceModel::Piece& piece) {
  return piece.type == SentencePieceModel::Type::kNormal || piece.type == SentencePieceModel::Type::kUserDefined;
}

// Checks the settings that all types of models share. Throws ValueError that names `name` for an unsupported setting.
void check_supported(const SentencePieceModel& model, const std::string& name);

// The ids of pieces that are not text.
struct ReservedPieces {
  int32_t unknown = -1;
  ByteIds bytes = no_byte_ids();  // either all or none are set
};

// Throws ValueError that names `name` if the reserved pieces contradict the model.
ReservedPieces reserved_pieces(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <string>

#include "tokenizer/byte_token.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// Returns whether a piece stands for text. Only normal and user-defined pieces do. Control tokens, for example, do not.
inline bool is_ordinary(const SentencePieceModel::Piece& piece) {
  return piece.type == SentencePieceModel::Type::kNormal || piece.type == SentencePieceModel::Type::kUserDefined;
}

// Checks the settings and pieces of a model of any type. Throws a ValueError that names `name` for an unsupported
// setting, and for a piece of more than Unigram::kMaxPieceBytes.
void check_supported(const SentencePieceModel& model, const std::string& name);

// The ids of the unknown piece and of the byte pieces.
struct ReservedPieces {
  int32_t unknown = -1;
  ByteIds bytes = no_byte_ids();  // either all or none are set
};

// Returns the reserved pieces of a model. The model must have exactly one unknown piece. If byte_fallback is true, it
// must have one byte piece per byte, else none. Throws a ValueError that names `name` for another model.
ReservedPieces reserved_pieces(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

#include "tokenizer/sentencepiece_unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "tokenizer/sentencepiece_reserved.h"

namespace zeroshard {
namespace {

using Type = SentencePieceModel::Type;

// Returns the score that SentencePiece 0.2.3 gives a user-defined piece of `bytes` bytes. The score is at least 0, and
// the scores of other pieces are normally negative. So user-defined pieces win.
float user_defined_score(size_t bytes) {
  return static_cast<float>(0.1 * static_cast<double>(bytes - 1));
}

float unknown_score(const SentencePieceModel& model) {
  float lowest = std::numeric_limits<float>::max();
  for (const SentencePieceModel::Piece& piece : model.pieces)
    if (piece.type == Type::kNormal) lowest = std::min(lowest, piece.score);
  return lowest - static_cast<float>(Unigram::kUnknownPenalty);
}

}  // namespace

Unigram unigram_of(const SentencePieceModel& model, const std::string& name) {
  check_supported(model, name);
  const ReservedPieces reserved = reserved_pieces(model, name);
  Unigram::Parts parts;
  parts.flavor = Unigram::Flavor::kSentencePiece;
  parts.unknown_id = reserved.unknown;
  parts.unknown_score = unknown_score(model);
  parts.bytes = reserved.bytes;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    ZS_CHECK(std::isfinite(piece.score), "'", name, "': the score of the piece '", piece.text, "' is infinite");
    const bool user_defined = piece.type == Type::kUserDefined;
    parts.pieces.push_back({is_ordinary(piece) ? piece.text : std::string(),
                            user_defined ? user_defined_score(piece.text.size()) : piece.score});
  }
  return Unigram(std::move(parts));
}

}  // namespace zeroshard

#include "tokenizer/sentencepiece_reserved.h"

#include "base/check.h"
#include "tokenizer/unigram.h"

namespace zeroshard {

using Type = SentencePieceModel::Type;

void check_supported(const SentencePieceModel& model, const std::string& name) {
  ZS_CHECK(!model.treat_whitespace_as_suffix, "'", name, "': treat_whitespace_as_suffix = true is not supported");
  ZS_CHECK(model.escape_whitespaces, "'", name, "': escape_whitespaces = false is not supported");
  ZS_CHECK(!model.has_denormalizer, "'", name, "': a denormalizer is not supported");
  // Limits the length, because bpe_of() tries every way to cut a piece in two.
  for (const SentencePieceModel::Piece& piece : model.pieces)
    ZS_CHECK(piece.text.size() <= Unigram::kMaxPieceBytes, "'", name, "' has a piece of ", piece.text.size(),
             " bytes: at most ", Unigram::kMaxPieceBytes, " are supported");
}

ReservedPieces reserved_pieces(const SentencePieceModel& model, const std::string& name) {
  ReservedPieces reserved;
  size_t bytes = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    if (piece.type == Type::kUnknown) {
      ZS_CHECK(reserved.unknown < 0, "'", name, "' has two unknown pieces");
      reserved.unknown = static_cast<int32_t>(id);
    }
    if (piece.type != Type::kByte) continue;
    const auto byte = byte_of_token(piece.text);
    ZS_CHECK(byte && reserved.bytes[*byte] < 0, "'", name, "': the byte piece '", piece.text, "' is wrong");
    reserved.bytes[*byte] = static_cast<int32_t>(id);
    ++bytes;
  }
  ZS_CHECK(reserved.unknown >= 0, "'", name, "' has no unknown piece");
  ZS_CHECK(bytes == (model.byte_fallback ? 256 : 0), "'", name, "' has ", bytes,
           " byte pieces, with byte_fallback = ", model.byte_fallback ? "true" : "false");
  return reserved;
}

}  // namespace zeroshard

#pragma once
#include <string>

#include "tokenizer/bpe.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// Makes the byte-pair encoding of a SentencePiece model. Two neighbouring symbols merge if their joined text is a
// piece. The pair whose piece has the highest score merges first. Throws a ValueError that names `name` for unsupported
// models.
Bpe bpe_of(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

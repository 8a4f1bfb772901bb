#pragma once
#include <string>

#include "tokenizer/bpe.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// The merges that a SentencePiece model implies: two neighbours join if the joined text is a piece, highest score
// first. Throws ValueError naming `name` for unsupported models.
Bpe bpe_of(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

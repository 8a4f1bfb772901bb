#pragma once
#include <string>

#include "tokenizer/bpe.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// The merges that a SentencePiece model implies: two neighbours join when the model has the joined piece, the one with
// the highest score first. Throws ValueError naming `name` for what is not supported.
Bpe bpe_of(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

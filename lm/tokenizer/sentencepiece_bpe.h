#pragma once
#include <string>

#include "tokenizer/bpe.h"
#include "tokenizer/sentencepiece_model.h"

namespace zeroshard {

// Derives the merges of a SentencePiece model: two neighbours merge if the joined text is a piece, the highest score
// first. Throws ValueError that names `name` for unsupported models.
Bpe bpe_of(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

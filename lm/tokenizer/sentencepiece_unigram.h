#pragma once
#include <string>

#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/unigram.h"

namespace zeroshard {

// Makes the Unigram encoding of a SentencePiece model. Throws a ValueError that names `name` for unsupported models.
Unigram unigram_of(const SentencePieceModel& model, const std::string& name);

}  // namespace zeroshard

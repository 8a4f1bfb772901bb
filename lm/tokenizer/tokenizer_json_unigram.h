#pragma once
#include "tokenizer/json_field.h"
#include "tokenizer/token_list.h"
#include "tokenizer/unigram.h"

namespace zeroshard {

// Checks the vocabulary of a model of type Unigram in tokenizer.json. It must be [["token", score], ...], in the order
// of the ids. Throws ValueError for another form, and for a token of more than Unigram::kMaxPieceBytes.
void check_unigram_vocabulary(const JsonField& vocab);
void add_unigram_tokens(const JsonField& vocab, TokenList& tokens);
// Reads the model. The caller must have checked the vocabulary. `byte_level` says that the model's tokens are written
// in GPT-2's alphabet. If several ids have the same token, the last of them counts.
Unigram read_unigram(const JsonField& model, bool byte_level);
// Adds everything in the model except its tokens to the digest.
void add_unigram_to_digest(const JsonField& model, TokenizerDigest& digest);

}  // namespace zeroshard

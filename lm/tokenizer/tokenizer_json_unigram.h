#pragma once
#include "tokenizer/json_field.h"
#include "tokenizer/token_list.h"
#include "tokenizer/unigram.h"

namespace zeroshard {

// Checks the vocabulary of tokenizer.json's model of type Unigram, which is [["token", score], ...] by id. If tokens
// are equal, the last one counts. Throws ValueError for another form.
void check_unigram_vocabulary(const JsonField& vocab);
void add_unigram_tokens(const JsonField& vocab, TokenList& tokens);
// Reads the model, whose vocabulary must have been checked. `byte_level` says that its tokens are written in GPT-2's
// alphabet.
Unigram read_unigram(const JsonField& model, bool byte_level);
// Adds the model without its tokens to the digest.
void add_unigram_to_digest(const JsonField& model, TokenizerDigest& digest);

}  // namespace zeroshard

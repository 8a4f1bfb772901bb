#pragma once
#include "tokenizer/json_field.h"
#include "tokenizer/token_list.h"
#include "tokenizer/unigram.h"

namespace zeroshard {

// tokenizer.json's model of type Unigram: its vocabulary is [["token", score], ...] by id. If tokens are equal, the
// last counts. Throws ValueError for another form.
void check_unigram_vocabulary(const JsonField& vocab);
void add_unigram_tokens(const JsonField& vocab, TokenList& tokens);
// The model, whose vocabulary was checked. `byte_level`: its tokens are written in GPT-2's alphabet.
Unigram read_unigram(const JsonField& model, bool byte_level);
// The digest of the model, without its tokens.
void add_unigram_to_digest(const JsonField& model, TokenizerDigest& digest);

}  // namespace zeroshard

#pragma once
#include "tokenizer/json_field.h"
#include "tokenizer/subword_model.h"
#include "tokenizer/token_list.h"

namespace zeroshard {

// Reads the tokens of the model in tokenizer.json. The list has room for the ids of the added tokens, too, but the
// caller must set the added tokens. Throws ValueError for a vocabulary that is wrong or not supported.
TokenList read_tokens(const JsonField& root);
// Reads the model. `byte_level` says that the model's tokens are written in GPT-2's alphabet (see byte_level.h).
SubwordModel read_model(const JsonField& model, bool byte_level);
// Adds everything in the model except its tokens to the digest.
void add_to_digest(const JsonField& model, TokenizerDigest& digest);

}  // namespace zeroshard

#pragma once
#include "tokenizer/json_field.h"
#include "tokenizer/subword_model.h"
#include "tokenizer/token_list.h"

namespace zeroshard {

// The tokens of tokenizer.json's model and its added tokens.
TokenList read_tokens(const JsonField& root);
// The model itself. `byte_level`: its tokens are written in GPT-2's alphabet.
SubwordModel read_model(const JsonField& model, bool byte_level);
// The digest of the model, without its tokens.
void add_to_digest(const JsonField& model, TokenizerDigest& digest);

}  // namespace zeroshard

#pragma once
#include "tokenizer/bpe.h"
#include "tokenizer/json_field.h"
#include "tokenizer/token_list.h"

namespace zeroshard {

// Reads a model of type BPE in tokenizer.json. `byte_level` says that the model's tokens are written in GPT-2's
// alphabet. Throws ValueError for a model that is wrong or not supported.
Bpe read_bpe(const JsonField& model, bool byte_level);
// Adds everything in the model except its tokens to the digest.
void add_bpe_to_digest(const JsonField& model, TokenizerDigest& digest);

}  // namespace zeroshard

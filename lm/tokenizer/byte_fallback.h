#pragma once
#include "tokenizer/byte_token.h"
#include "tokenizer/json_field.h"
#include "tokenizer/tables.h"

namespace zeroshard {

// Reads how a model in tokenizer.json encodes unknown text as bytes. If the model has `byte_fallback`, returns the ids
// of those tokens <0x00> to <0xFF> that exist, and otherwise no ids. `ids` has the model's tokens as tokenizer.json
// spells them. Throws ValueError for `byte_fallback` with `byte_level`.
inline ByteIds read_byte_fallback(const JsonField& model, const StringTable& ids, bool byte_level) {
  ByteIds bytes = no_byte_ids();
  if (!model.boolean_or("byte_fallback", false)) return bytes;
  if (byte_level) model["byte_fallback"].refuse("with ByteLevel every byte must be in the vocabulary instead");
  for (size_t byte = 0; byte < 256; ++byte) bytes[byte] = ids.find(token_of_byte(byte));
  return bytes;
}

}  // namespace zeroshard

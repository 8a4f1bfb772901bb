#pragma once
#include "tokenizer/byte_token.h"
#include "tokenizer/json_field.h"
#include "tokenizer/tables.h"

namespace zeroshard {

// Returns the ids of those tokens <0x00> to <0xFF> that exist. If a model in tokenizer.json has `byte_fallback`, it
// encodes the bytes of unknown text with these tokens. `ids` has the model's tokens as tokenizer.json spells them.
inline ByteIds read_byte_fallback(const JsonField& model, const StringTable& ids, bool byte_level) {
  ByteIds bytes = no_byte_ids();
  if (!model.boolean_or("byte_fallback", false)) return bytes;
  if (byte_level) model["byte_fallback"].refuse("with ByteLevel every byte must be in the vocabulary instead");
  for (size_t byte = 0; byte < 256; ++byte) bytes[byte] = ids.find(token_of_byte(byte));
  return bytes;
}

}  // namespace zeroshard

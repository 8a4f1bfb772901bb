#pragma once
#include "tokenizer/byte_token.h"
#include "tokenizer/json_field.h"
#include "tokenizer/tables.h"

namespace zeroshard {

// Reads how a model in tokenizer.json encodes unknown text as bytes. If `byte_fallback` is true in the model, returns
// the ids of the tokens <0x00> to <0xFF>, with -1 for tokens that do not exist. Otherwise returns -1 for all bytes.
// `ids` has the model's tokens as tokenizer.json spells them. Throws ValueError if both `byte_fallback` and
// `byte_level` are true.
inline ByteIds read_byte_fallback(const JsonField& model, const StringTable& ids, bool byte_level) {
  ByteIds bytes = no_byte_ids();
  if (!model.boolean_or("byte_fallback", false)) return bytes;
  if (byte_level) model["byte_fallback"].refuse("with ByteLevel every byte must be in the vocabulary instead");
  for (size_t byte = 0; byte < 256; ++byte) bytes[byte] = ids.find(token_of_byte(byte));
  return bytes;
}

}  // namespace zeroshard

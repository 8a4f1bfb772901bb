#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace zeroshard {

// Returns the bytes of a token that is written in GPT-2's alphabet, which has a printable character for each byte.
// Byte-level vocabularies use this alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view token);  // nothing if a character is not in the alphabet

}  // namespace zeroshard

#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace zeroshard {

// GPT-2's alphabet, in which byte-level vocabularies are written: a printable character for each byte.
std::optional<std::string> from_byte_alphabet(std::string_view token);  // nothing if a character is not part of it

}  // namespace zeroshard

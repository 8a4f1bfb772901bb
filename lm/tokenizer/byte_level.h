#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace zeroshard {

// Decodes GPT-2's alphabet, which has a printable character for each byte and in which byte-level vocabularies are
// written.
std::optional<std::string> from_byte_alphabet(std::string_view token);  // nothing if a character is not in the alphabet

}  // namespace zeroshard

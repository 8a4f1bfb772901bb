#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// Handles UTF-8 and the few properties of characters that tokenizers need outside of regular expressions.
namespace zeroshard {

struct CodePoint {
  char32_t code = 0;
  size_t bytes = 0;
  bool valid = true;
};

// Returns the first character of `text`, which must not be empty. If `text` begins with an ill-formed part, returns
// U+FFFD with the length of the maximal such part.
CodePoint decode_utf8(std::string_view text);
// Returns the last character of `text`, which must be well formed and not empty.
CodePoint last_character(std::string_view text);
void append_utf8(std::string& text, char32_t code);

bool is_valid_utf8(std::string_view text);
// Returns `text` with U+FFFD for each maximal ill-formed part.
std::string replace_invalid_utf8(std::string_view text);
// Returns `text` if it is well formed. Otherwise writes replace_invalid_utf8(text) to `storage` and returns that.
std::string_view well_formed_utf8(std::string_view text, std::string& storage);

// Returns the length of the character that begins with `lead`, in well-formed text.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Returns the length of the first grapheme cluster (UAX #29, extended) of `text`, which must be well formed and not
// empty.
size_t grapheme_length(std::string_view text);

bool is_white_space(char32_t code);  // Unicode's White_Space
bool is_word(char32_t code);         // \w of Unicode's regular expressions (UTS #18)

}  // namespace zeroshard

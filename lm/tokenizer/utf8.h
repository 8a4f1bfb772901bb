#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8, and the few properties of characters that tokenizers need outside of regular expressions.
namespace zeroshard {

struct CodePoint {
  char32_t code = 0;
  size_t bytes = 0;
  bool valid = true;
};

// The first character of `text`, which is not empty. Ill-formed: U+FFFD and the length of the maximal ill-formed part.
CodePoint decode_utf8(std::string_view text);
// The last character of `text`, which must be well formed and not empty.
CodePoint last_character(std::string_view text);
void append_utf8(std::string& text, char32_t code);

bool is_valid_utf8(std::string_view text);
// Each maximal ill-formed part becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
// `text` if it is well formed, else its replacement in `storage`.
std::string_view well_formed_utf8(std::string_view text, std::string& storage);

// Length of the character that begins with `lead`, in well-formed text.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Length of the first grapheme cluster (UAX #29, extended) of `text`, which is well formed and not empty.
size_t grapheme_length(std::string_view text);

bool is_white_space(char32_t code);  // Unicode's White_Space
bool is_word(char32_t code);         // \w of Unicode's regular expressions (UTS #18)

}  // namespace zeroshard

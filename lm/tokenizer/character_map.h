#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// The changes that normalizers of tokenizer.json make to single characters.
enum class CharacterMap {
  kLowercase,     // does not depend on neighbouring characters
  kStripAccents,  // drops combining marks
  kNmt,           // drops some control characters; others, spaces, U+2581, U+FEFF and U+FFFD become U+0020
};

// Returns `text` with the change made to each character. `text` must be well formed.
std::string mapped(std::string_view text, CharacterMap map);

}  // namespace zeroshard

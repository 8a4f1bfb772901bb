#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// Changes that normalizers of tokenizer.json make to single characters.
enum class CharacterMap {
  kLowercase,     // regardless of the neighbours
  kStripAccents,  // drops combining marks
  kNmt,           // drops control characters; other spaces become U+0020
};

// `text` is well formed.
std::string mapped(std::string_view text, CharacterMap map);

}  // namespace zeroshard

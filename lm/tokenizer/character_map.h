#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// What normalizers of tokenizer.json do with each character on its own.
enum class CharacterMap {
  kLowercase,     // whatever its neighbours are
  kStripAccents,  // combining marks go
  kNmt,           // control characters go, other spaces become U+0020
};

// `text` is well formed.
std::string mapped(std::string_view text, CharacterMap map);

}  // namespace zeroshard

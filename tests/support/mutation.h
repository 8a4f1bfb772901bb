#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "support/random.h"

namespace zeroshard::testing {

// `text` after one to four edits, with new bytes of `alphabet`: parts are added, removed, repeated or cut off, or a bit
// is changed.
inline std::string mutated(std::string text, std::string_view alphabet, Random& random) {
  for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
    const size_t at = text.empty() ? 0 : random() % text.size();
    const char c = alphabet[random() % alphabet.size()];
    switch (random() % 5) {
      case 0:
        text.insert(text.begin() + ptrdiff_t(at), c);
        break;
      case 1:
        text.erase(at, 1 + random() % 5);
        break;
      case 2:
        text.insert(at, text.substr(at / 2, random() % 40));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        if (!text.empty()) text[at] = char(text[at] ^ char(1 << random() % 8));
    }
  }
  return text;
}

}  // namespace zeroshard::testing

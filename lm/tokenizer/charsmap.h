#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// SentencePiece's compiled normalization rules: a double array of the texts that are replaced, and the replacements.
class Charsmap {
 public:
  struct Rule {
    size_t bytes = 0;  // of the text; 0: no rule
    std::string_view replacement;
  };

  // Empty: no rules. Throws ValueError naming `name` when the bytes are wrong.
  Charsmap(std::string_view bytes, const std::string& name);
  // The rule of the longest text that `text` begins with, as SentencePiece applies them.
  Rule longest(std::string_view text) const { return find(text, Which::kLongest); }
  // All of `text` as Hugging Face's `tokenizers` applies them: to each grapheme of less than 6 bytes, which becomes
  // what the rule of the shortest text that it begins with says; without one, and else, to each character.
  std::string apply_to_graphemes(std::string_view text) const;

 private:
  enum class Which { kShortest, kLongest };
  Rule find(std::string_view text, Which which) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

}  // namespace zeroshard

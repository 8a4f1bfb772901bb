#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// SentencePiece's compiled normalization rules: a double array of the replaced texts, and the replacements.
class Charsmap {
 public:
  struct Rule {
    size_t bytes = 0;  // of the text; 0: no rule
    std::string_view replacement;
  };

  // Empty: no rules. Throws ValueError naming `name` if the bytes are invalid.
  Charsmap(std::string_view bytes, const std::string& name);
  // The rule for the longest text that `text` begins with, as SentencePiece applies it.
  Rule longest(std::string_view text) const { return find(text, Which::kLongest); }
  // All of `text`, as Hugging Face's `tokenizers` do it: each grapheme of less than 6 bytes by the rule for the
  // shortest text that it begins with; without such a rule, and in longer graphemes, each character by its own rule.
  std::string apply_to_graphemes(std::string_view text) const;

 private:
  enum class Which { kShortest, kLongest };
  Rule find(std::string_view text, Which which) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

}  // namespace zeroshard

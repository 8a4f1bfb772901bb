#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// SentencePiece's compiled normalization rules: a trie of the texts to replace (stored as a double array), and the
// replacements.
class Charsmap {
 public:
  struct Rule {
    size_t bytes = 0;  // length of the text; 0: no rule
    std::string_view replacement;
  };

  // Empty bytes mean no rules. Throws ValueError that names `name` if the bytes are invalid.
  Charsmap(std::string_view bytes, const std::string& name);
  // Returns the rule for the longest text with which `text` begins, as SentencePiece applies it.
  Rule longest(std::string_view text) const { return find(text, Which::kLongest); }
  // Normalizes all of `text` like Hugging Face's `tokenizers`. For a grapheme of less than 6 bytes, the rule for the
  // shortest text with which it begins gives the replacement. Without such a rule, and in longer graphemes, each
  // character is replaced by its own rule.
  std::string apply_to_graphemes(std::string_view text) const;

 private:
  enum class Which { kShortest, kLongest };
  Rule find(std::string_view text, Which which) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// The compiled normalization rules of a SentencePiece model. Each rule has a text and its replacement. The texts form a
// trie, which is stored as a double array.
class Charsmap {
 public:
  struct Rule {
    size_t bytes = 0;  // length of the text; 0: no rule
    std::string_view replacement;
  };

  // Reads the compiled rules in `bytes`, which can be empty. Throws a ValueError that names `name` if the size of the
  // trie is wrong or the replacements are not UTF-8.
  Charsmap(std::string_view bytes, const std::string& name);
  // Returns the rule for the longest prefix of `text` that has one. SentencePiece applies that rule.
  Rule longest(std::string_view text) const { return find(text, Which::kLongest); }
  // Normalizes `text` as Hugging Face's `tokenizers` does. If a grapheme has less than 6 bytes, looks for the shortest
  // prefix of it that has a rule, and replaces the whole grapheme by the replacement of that rule. If the grapheme is
  // longer or no prefix has a rule, treats each of its characters in this way, or keeps the character if it has no
  // rule.
  std::string apply_to_graphemes(std::string_view text) const;

 private:
  enum class Which { kShortest, kLongest };
  Rule find(std::string_view text, Which which) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

}  // namespace zeroshard

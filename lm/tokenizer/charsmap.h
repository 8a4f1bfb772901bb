#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// The compiled normalization rules of a SentencePiece model. They consist of the texts to replace, as a trie that is
// stored as a double array, and of the replacements.
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
  // Normalizes `text` as Hugging Face's `tokenizers` does. If a grapheme has less than 6 bytes and a prefix of it has a
  // rule, the replacement of the shortest such prefix replaces the whole grapheme. Otherwise each character of the
  // grapheme is replaced by its own rule, or stays if it has none.
  std::string apply_to_graphemes(std::string_view text) const;

 private:
  enum class Which { kShortest, kLongest };
  Rule find(std::string_view text, Which which) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a NUL
};

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tables.h"

namespace zeroshard {

// Finds a tokenizer's added tokens in a text. The tokenizer then processes only the parts between them.
class AddedTokens {
 public:
  struct Token {
    std::string content;
    int32_t id = 0;
    bool special = false;                 // found only with parse_special; decoding can leave it out
    bool single_word = false;             // is not found next to a word character
    bool lstrip = false, rstrip = false;  // also takes the white space before or after it
  };

  // Adds a token that cut() finds by `text`, which must not be empty. If two tokens have the same text, the first one
  // counts.
  void insert(std::string_view text, Token token);
  bool empty() const { return tokens_.empty(); }

  // Cuts `text`, which must be well formed, at the tokens. Calls part(begin, end) for the text between tokens and
  // token(id) for each token, from left to right. At each position, considers only the longest token that matches
  // there. If that token must not be taken, for example because it is inside a word, continues after its text. So no
  // other token that begins within this text is found.
  template <typename Part, typename Found>
  void cut(std::string_view text, bool parse_special, const Part& part, const Found& token) const {
    size_t done = 0;
    for (size_t at = trie_.candidate(text, 0); at < text.size(); at = trie_.candidate(text, at)) {
      const auto found = trie_.longest(text.substr(at));
      if (!found) {
        ++at;
        continue;
      }
      size_t begin = at, end = at + found->bytes;
      at = end;
      const Token& candidate = tokens_[static_cast<size_t>(found->value)];
      if (!is_taken(candidate, text, begin, end, parse_special)) continue;
      widen(candidate, text, done, begin, end);
      if (candidate.lstrip && begin >= end) continue;  // an earlier token with rstrip has taken all of this text
      if (done < begin) part(done, begin);
      token(candidate.id);
      done = end;
    }
    if (done < text.size()) part(done, text.size());
  }

 private:
  static bool is_taken(const Token& token, std::string_view text, size_t begin, size_t end, bool parse_special);
  static void widen(const Token& token, std::string_view text, size_t done, size_t& begin, size_t& end);

  std::vector<Token> tokens_;
  PrefixTrie trie_;
};

}  // namespace zeroshard

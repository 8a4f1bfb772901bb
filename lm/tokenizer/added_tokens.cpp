#include "tokenizer/added_tokens.h"

#include "tokenizer/utf8.h"

namespace zeroshard {
void AddedTokens::insert(std::string_view text, Token token) {
  if (trie_.insert(text, static_cast<int32_t>(tokens_.size()))) tokens_.push_back(std::move(token));
}

bool AddedTokens::is_taken(const Token& token, std::string_view text, size_t begin, size_t end, bool parse_special) {
  if (token.special && !parse_special) return false;
  if (!token.single_word) return true;
  const bool goes_on_before = begin > 0 && is_word(last_character(text.substr(0, begin)).code);
  return !goes_on_before && (end == text.size() || !is_word(decode_utf8(text.substr(end)).code));
}

void AddedTokens::widen(const Token& token, std::string_view text, size_t done, size_t& begin, size_t& end) {
  while (token.lstrip && begin > done) {
    const CodePoint before = last_character(text.substr(0, begin));
    if (!is_white_space(before.code)) break;
    begin -= before.bytes;
  }
  while (token.rstrip && end < text.size()) {
    const CodePoint after = decode_utf8(text.substr(end));
    if (!is_white_space(after.code)) break;
    end += after.bytes;
  }
  begin = std::max(begin, done);
}

}  // namespace zeroshard

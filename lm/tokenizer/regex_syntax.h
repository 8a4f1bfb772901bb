#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// Rewrites a regular expression for PCRE2 (with UTF and UCP) from the syntax of Oniguruma (Ruby), which tokenizer.json
// uses. Both then match the same texts. Throws ValueError for syntax that cannot be rewritten, because only one of the
// two supports it, or the two read it differently.
std::string to_pcre2(std::string_view pattern);

// Returns a pattern that matches only `text`.
std::string escaped_pattern(std::string_view text);

}  // namespace zeroshard

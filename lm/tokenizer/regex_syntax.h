#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// Rewrites a regular expression from the syntax of Oniguruma (Ruby), which tokenizer.json uses, for PCRE2 with UTF and
// UCP, so that both match the same. Throws ValueError for syntax that the two read differently or that only one
// supports.
std::string to_pcre2(std::string_view pattern);

// Returns a pattern that matches only `text`.
std::string escaped_pattern(std::string_view text);

}  // namespace zeroshard

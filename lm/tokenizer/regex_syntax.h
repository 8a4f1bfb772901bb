#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// Rewrites a regular expression from the syntax of Oniguruma (Ruby), which tokenizer.json uses, to that of PCRE2 (with
// UTF and UCP). The result matches the same texts. Throws ValueError for patterns with an error, and for syntax that
// this function does not support, for example because the two libraries read it differently.
std::string to_pcre2(std::string_view pattern);

// Returns a pattern that matches only `text`.
std::string escaped_pattern(std::string_view text);

}  // namespace zeroshard

#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// Rewrites a regular expression from the syntax of Oniguruma (Ruby), which tokenizer.json uses, to that of PCRE2 (with
// UTF and UCP). The result matches the same texts. Throws ValueError for syntax that this function does not
// rewrite, such as what the two libraries read differently, and for patterns with an error.
std::string to_pcre2(std::string_view pattern);

// Returns a pattern that matches only `text`.
std::string escaped_pattern(std::string_view text);

}  // namespace zeroshard

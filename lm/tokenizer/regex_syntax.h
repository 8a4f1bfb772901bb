#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// Rewrites a regular expression in Oniguruma's (Ruby's) syntax, which tokenizer.json has, for PCRE2 with UTF and UCP,
// so that both match the same. Throws ValueError for what the two read differently or only one knows.
std::string to_pcre2(std::string_view pattern);

// A pattern that matches `text` alone.
std::string escaped_pattern(std::string_view text);

}  // namespace zeroshard

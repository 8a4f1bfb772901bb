#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// A text of the user for a message: control characters as "\x1b"; without its middle if it is longer than `most_bytes`
// (at least 3). UTF-8 characters stay whole.
std::string shown_text(std::string_view text, size_t most_bytes = 80);
// The first five: "'a', 'b', 'c', 'd', 'e' and 7 more".
std::string some_of(const std::vector<std::string>& names);

}  // namespace zeroshard

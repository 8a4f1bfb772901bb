#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Returns `text`, which a user gave, as a message shows it. Control characters are escaped, for example ESC as "\x1b".
// If `text` has more than `most_bytes` bytes before the escapes, its middle is replaced by "...". UTF-8 characters stay
// whole. `most_bytes` must be at least 3.
std::string shown_text(std::string_view text, size_t most_bytes = 80);
// Returns the names in quotes. If there are more than five, returns the first five and the number of the rest:
// "'a', 'b', 'c', 'd', 'e' and 7 more".
std::string some_of(const std::vector<std::string>& names);

}  // namespace zeroshard

#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Returns true if a quick check shows that `text`, which must be well formed, is in the form. If the result is false,
// `text` can be in the form or not.
bool is_surely_in_form(std::string_view text, UnicodeForm form);
// Returns `text` in the form. Takes O(n log n) time, even for long runs of combining marks.
std::string to_form(std::string_view text, UnicodeForm form);

}  // namespace zeroshard

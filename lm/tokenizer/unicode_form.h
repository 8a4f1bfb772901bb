#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Returns true only if `text`, which must be well formed, is certainly in the form. If it returns false, the text may
// or may not be in the form.
bool is_surely_in_form(std::string_view text, UnicodeForm form);
// Converts `text` to the form. Takes O(n log n) time, even for long runs of combining marks.
std::string to_form(std::string_view text, UnicodeForm form);

}  // namespace zeroshard

#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Returns true if `text`, which must be well formed, is certainly in the form. Returns false if only to_form() can
// tell.
bool is_surely_in_form(std::string_view text, UnicodeForm form);
// Returns `text` in the form. Takes O(n log n) time, even for long runs of combining marks.
std::string to_form(std::string_view text, UnicodeForm form);

}  // namespace zeroshard

#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Whether `text`, which is well formed, is certainly in that form: false may mean either.
bool is_surely_in_form(std::string_view text, UnicodeForm form);
// Time is O(n log n) even for long runs of combining marks.
std::string to_form(std::string_view text, UnicodeForm form);

}  // namespace zeroshard

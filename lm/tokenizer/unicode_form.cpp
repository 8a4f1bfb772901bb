#include "tokenizer/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

struct SafeRange {
  char32_t first, last;
};
// Ranges of characters that NFC leaves unchanged: Cyrillic, kana, Chinese, Hangul, punctuation and emoji. These
// characters compose neither with each other nor with characters below U+0300.
constexpr std::array kSafeForNfc = {SafeRange{0x400, 0x482},     SafeRange{0x2010, 0x2027},  SafeRange{0x2030, 0x205E},
                                    SafeRange{0x3000, 0x3029},   SafeRange{0x3041, 0x3096},  SafeRange{0x30A0, 0x30FF},
                                    SafeRange{0x4E00, 0x9FFF},   SafeRange{0xAC00, 0xD7A3},  SafeRange{0xFF00, 0xFFEF},
                                    SafeRange{0x1F300, 0x1F64F}, SafeRange{0x1F900, 0x1F9FF}};

bool is_safe_for_nfc(char32_t code) {
  return code < 0x300 || std::any_of(kSafeForNfc.begin(), kSafeForNfc.end(), [code](const SafeRange& range) {
           return code >= range.first && code <= range.last;
         });
}

int combining_class(utf8proc_int32_t code) {
  return utf8proc_get_property(code)->combining_class;
}

}  // namespace

bool is_surely_in_form(std::string_view text, UnicodeForm form) {
  const bool nfc = form == UnicodeForm::kNfc;
  while (!text.empty()) {
    if (static_cast<unsigned char>(text[0]) < 0x80) {
      text.remove_prefix(1);
      continue;
    }
    const CodePoint next = decode_utf8(text);
    if (!nfc || !is_safe_for_nfc(next.code)) return false;
    text.remove_prefix(next.bytes);
  }
  return true;
}

std::string to_form(std::string_view text, UnicodeForm form) {
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const auto decompose =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = decode_utf8(text);
    text.remove_prefix(next.bytes);
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(next.code), parts.data(),
                                                           parts.size(), decompose, &boundary);
    ZS_ASSERT(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "of U+",
              static_cast<uint32_t>(next.code));
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  // Sorts each run of combining marks by class, because the sort in utf8proc takes time quadratic in the length of a
  // run.
  for (size_t begin = 0; begin < codes.size();) {
    size_t end = begin;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    const auto at = [&](size_t i) { return codes.begin() + static_cast<ptrdiff_t>(i); };
    if (end - begin > 1) {
      std::stable_sort(at(begin), at(end), [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    }
    begin = end + 1;
  }
  auto length = static_cast<utf8proc_ssize_t>(codes.size());
  if (compose) {
    length = utf8proc_normalize_utf32(codes.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    ZS_ASSERT(length >= 0, utf8proc_errmsg(length));
  }
  std::string result;
  result.reserve(codes.size());
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) append_utf8(result, static_cast<char32_t>(codes[i]));
  return result;
}

}  // namespace zeroshard

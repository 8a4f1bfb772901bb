#include "tokenizer/character_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

struct Range {
  char32_t first, last;
};
template <size_t kCount>
bool is_in(const std::array<Range, kCount>& ranges, char32_t code) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [code](const Range& range) { return code >= range.first && code <= range.last; });
}

constexpr std::array kNmtDropped = {Range{0x1, 0x8},   Range{0xB, 0xB},   Range{0xE, 0x1F},
                                    Range{0x7F, 0x7F}, Range{0x8F, 0x8F}, Range{0x9F, 0x9F}};
constexpr std::array kNmtSpaces = {Range{0x9, 0xA},       Range{0xC, 0xD},       Range{0x1680, 0x1680},
                                   Range{0x200B, 0x200F}, Range{0x2028, 0x2029}, Range{0x2581, 0x2581},
                                   Range{0xFEFF, 0xFEFF}, Range{0xFFFD, 0xFFFD}};

void append_lowercase(std::string& text, char32_t code) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the one character that becomes two
  if (code == kCapitalIWithDot) {
    text += "i\xCC\x87";
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

bool is_mark(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

void append_mapped(std::string& text, char32_t code, CharacterMap map) {
  switch (map) {
    case CharacterMap::kLowercase:
      return append_lowercase(text, code);
    case CharacterMap::kStripAccents:
      if (!is_mark(code)) append_utf8(text, code);
      return;
    case CharacterMap::kNmt:
      if (!is_in(kNmtDropped, code)) append_utf8(text, is_in(kNmtSpaces, code) ? U' ' : code);
      return;
  }
}

}  // namespace

std::string mapped(std::string_view text, CharacterMap map) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = decode_utf8(text);
    append_mapped(result, next.code, map);
    text.remove_prefix(next.bytes);
  }
  return result;
}

}  // namespace zeroshard

#include "tokenizer/character_map.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

struct CodeRange {
  char32_t first, last;
};
template <size_t kCount>
bool is_in(const std::array<CodeRange, kCount>& ranges, char32_t code) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [code](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

constexpr std::array kNmtDropped = {CodeRange{0x1, 0x8},   CodeRange{0xB, 0xB},   CodeRange{0xE, 0x1F},
                                    CodeRange{0x7F, 0x7F}, CodeRange{0x8F, 0x8F}, CodeRange{0x9F, 0x9F}};
constexpr std::array kNmtSpaces = {CodeRange{0x9, 0xA},       CodeRange{0xC, 0xD},       CodeRange{0x1680, 0x1680},
                                   CodeRange{0x200B, 0x200F}, CodeRange{0x2028, 0x2029}, CodeRange{0x2581, 0x2581},
                                   CodeRange{0xFEFF, 0xFEFF}, CodeRange{0xFFFD, 0xFFFD}};

void append_lowercase(std::string& text, char32_t code) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the only character whose lower case is two characters
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

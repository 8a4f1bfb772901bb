#include "tokenizer/utf8.h"

#include <utf8proc.h>

#include <cstring>

namespace zeroshard {
namespace {

size_t ascii_prefix(std::string_view text) {
  size_t at = 0;
  for (uint64_t word = 0; at + 8 <= text.size(); at += 8) {
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ULL) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0) return {0xFFFD, 1, false};
  // Restricts the second byte, so that overlong forms, surrogates and characters beyond U+10FFFF are ill-formed.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return {0xFFFD, 1, false};
  char32_t code = ((lead & (0x7FU >> length)) << 6) | (byte(1) & 0x3F);
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {0xFFFD, i, false};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  return {code, length, true};
}

CodePoint last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode_utf8(text.substr(begin));
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | (code >> 6));
  } else {
    if (code < 0x10000) {
      put(0xE0 | (code >> 12));
    } else {
      put(0xF0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3F));
    }
    put(0x80 | ((code >> 6) & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

bool is_valid_utf8(std::string_view text) {
  for (text.remove_prefix(ascii_prefix(text)); !text.empty();) {
    const CodePoint next = decode_utf8(text);
    if (!next.valid) return false;
    text.remove_prefix(next.bytes);
    if (!text.empty() && static_cast<unsigned char>(text[0]) < 0x80) text.remove_prefix(ascii_prefix(text));
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = decode_utf8(text);
    if (next.valid) {
      result += text.substr(0, next.bytes);
    } else {
      result += "\xEF\xBF\xBD";
    }
    text.remove_prefix(next.bytes);
  }
  return result;
}

std::string_view well_formed_utf8(std::string_view text, std::string& storage) {
  if (is_valid_utf8(text)) return text;
  storage = replace_invalid_utf8(text);
  return storage;
}

size_t grapheme_length(std::string_view text) {
  const auto is_ascii = [&](size_t at) { return at >= text.size() || static_cast<unsigned char>(text[at]) < 0x80; };
  if (is_ascii(0) && is_ascii(1)) return text.starts_with("\r\n") ? 2 : 1;
  utf8proc_int32_t state = 0;
  CodePoint last = decode_utf8(text);
  for (size_t at = last.bytes; at < text.size(); at += last.bytes) {
    const CodePoint next = decode_utf8(text.substr(at));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      return at;
    }
    last = next;
  }
  return text.size();
}

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  if (code == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_word(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  // The characters of Join_Control, and circled and squared letters, which are Alphabetic although they are symbols.
  const auto within = [code](char32_t first, char32_t last) { return code >= first && code <= last; };
  return within(0x200C, 0x200D) || within(0x24B6, 0x24E9) || within(0x1F130, 0x1F149) || within(0x1F150, 0x1F169) ||
         within(0x1F170, 0x1F189);
}

}  // namespace zeroshard

#include "base/shown_text.h"

#include <algorithm>
#include <cstdio>

#include "base/format.h"

namespace zeroshard {
namespace {

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Returns the number of bytes of the control character at `at`, or 0 if another character is there. U+0080 to U+009F
// are control characters, too, because some terminals take them as the start of a command.
size_t control_bytes(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x20 || byte == 0x7F) return 1;
  const bool wide = byte == 0xC2 && at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) < 0xA0 &&
                    continues_character(text[at + 1]);
  return wide ? 2 : 0;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t control = control_bytes(text, at);
    if (control == 0) {
      result += text[at++];
      continue;
    }
    char code[8];
    std::snprintf(code, sizeof(code), "\\x%02x", static_cast<unsigned char>(text[at + control - 1]));
    result += code;
    at += control;
  }
  return result;
}

}  // namespace

std::string shown_text(std::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return escaped(text);
  constexpr std::string_view kLeftOut = "...";
  const size_t kept = most_bytes - kLeftOut.size();
  size_t head = kept * 2 / 3, tail = text.size() - kept / 3;
  while (head > 0 && continues_character(text[head])) --head;
  while (tail < text.size() && continues_character(text[tail])) ++tail;
  return escaped(text.substr(0, head)).append(kLeftOut) + escaped(text.substr(tail));
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) text += concat(i > 0 ? ", '" : "'", names[i], "'");
  return names.size() > kShown ? concat(text, " and ", names.size() - kShown, " more") : text;
}

}  // namespace zeroshard

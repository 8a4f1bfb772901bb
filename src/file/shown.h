#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// Returns text from a file as a message shows it. Control characters become "?". Text of more than 160 bytes is cut,
// but not inside a UTF-8 character, and ends with "...".
inline std::string shown(std::string_view text) {
  constexpr size_t kMaxBytes = 160;
  size_t end = text.size();
  if (end > kMaxBytes) {
    end = kMaxBytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  std::string result(text.substr(0, end));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return end < text.size() ? result + "..." : result;
}

}  // namespace zeroshard

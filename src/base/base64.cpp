#include "base/base64.h"

#include <cstdint>

#include "base/check.h"

namespace zeroshard {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::span<const std::byte> bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) group = group << 8 | (at + i < bytes.size() ? uint32_t(bytes[at + i]) : 0);
    const size_t digits = std::min<size_t>(3, bytes.size() - at) + 1;
    for (size_t i = 0; i < 4; ++i) text += i < digits ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::vector<std::byte> from_base64(std::string_view text) {
  ZS_CHECK(text.size() % 4 == 0, "not base64: ", text.size(), " characters");
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  const size_t size = text.size() / 4 * 3 - padding;
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t group = 0;
    for (size_t i = 0; i < 4; ++i) {
      const bool pads = at + i >= text.size() - padding;
      const size_t digit = pads ? 0 : kDigits.find(text[at + i]);
      ZS_CHECK(digit != std::string_view::npos, "not base64: character ", at + i);
      group = group << 6 | uint32_t(digit);
    }
    for (int shift = 16; shift >= 0 && bytes.size() < size; shift -= 8)
      bytes.push_back(std::byte(group >> shift & 255));
  }
  return bytes;
}

}  // namespace zeroshard

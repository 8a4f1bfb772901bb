#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

constexpr int kFirstShifted = 256, kShifted = 68;  // kShifted: number of bytes in 0x00-0x20, 0x7F-0xA0 and 0xAD

constexpr bool is_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// The bytes without a printable character of their own. The characters from U+0100 on stand for them, in the same
// order.
constexpr std::array<unsigned char, kShifted> kShiftedBytes = [] {
  std::array<unsigned char, kShifted> result{};
  size_t count = 0;
  for (int byte = 0; byte < 256; ++byte)
    if (!is_itself(byte)) result[count++] = static_cast<unsigned char>(byte);
  return result;
}();

}  // namespace

std::optional<std::string> from_byte_alphabet(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const CodePoint next = decode_utf8(token);
    token.remove_prefix(next.bytes);
    const auto code = static_cast<int>(next.code);
    if (code < 256 && is_itself(code)) {
      bytes += static_cast<char>(static_cast<unsigned char>(code));
    } else if (code >= kFirstShifted && code < kFirstShifted + kShifted) {
      bytes += static_cast<char>(kShiftedBytes[static_cast<size_t>(code - kFirstShifted)]);
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

}  // namespace zeroshard

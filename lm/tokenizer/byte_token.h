#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace zeroshard {

// The ids of the tokens that stand for single bytes. -1 means that a byte has no token.
using ByteIds = std::array<int32_t, 256>;

inline ByteIds no_byte_ids() {
  ByteIds ids{};
  ids.fill(-1);
  return ids;
}

// Appends the ids of the bytes of `text`. If one byte has no id, returns false and appends nothing.
template <typename Ids>
bool append_byte_ids(const ByteIds& bytes, std::string_view text, Ids& out) {
  const auto id = [&](char byte) { return bytes[static_cast<unsigned char>(byte)]; };
  for (const char byte : text)
    if (id(byte) < 0) return false;
  for (const char byte : text) out.push_back(id(byte));
  return true;
}

// Returns the byte of a token like "<0x0A>", or nothing for any other token.
inline std::optional<unsigned char> byte_of_token(std::string_view token) {
  const auto digit = [&](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = digit(token[3]), low = digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

inline std::string token_of_byte(size_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
}

}  // namespace zeroshard

#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zeroshard {

// Encodes `bytes` as base64 (RFC 4648), with padding.
std::string to_base64(std::span<const std::byte> bytes);
// Decodes base64. Throws ValueError if `text` is not base64.
std::vector<std::byte> from_base64(std::string_view text);

}  // namespace zeroshard

#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace zeroshard {

using Json = nlohmann::ordered_json;

inline constexpr size_t kMaxConfigBytes = 1 << 20;
inline constexpr int kMaxConfigDepth = 64;

// Parses JSON as people write it by hand, with //, /* */ and # comments, and with commas before a closing bracket.
// Infinity and NaN, which Python writes, become the strings "Infinity", "-Infinity" and "NaN". Throws ConfigError for a
// syntax error (with line and column), for a repeated key or a number that is too large (with the path), and for a text
// that is too long, too deep, or has too many keys.
Json read_json(std::string_view text);

// Returns `value` as JSON on one line, cut to a length that fits an error message.
std::string shown(const Json& value);

}  // namespace zeroshard

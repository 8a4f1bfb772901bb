#pragma once
#include <array>
#include <cstdio>
#include <string>

namespace zeroshard::cli {

// Formats `values` as printf() does. Cuts the text off after 255 bytes.
std::string format(const char* pattern, auto... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

// Returns `json` as text in indented lines. Strings in `json` can be paths with any bytes. Bytes that are not UTF-8
// become U+FFFD.
template <typename Json>
std::string json_text(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace zeroshard::cli

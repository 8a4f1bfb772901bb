#pragma once
#include <array>
#include <cstdio>
#include <string>

namespace zeroshard::cli {

// As printf, up to 255 characters.
std::string format(const char* pattern, auto... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

// In lines. Paths may have any bytes; those that are not UTF-8 become U+FFFD.
template <typename Json>
std::string json_text(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace zeroshard::cli

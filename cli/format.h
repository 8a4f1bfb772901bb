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

}  // namespace zeroshard::cli

#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace zeroshard {

// Returns `shape` in the form "[2, 3]".
inline std::string shape_text(std::span<const int64_t> shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

}  // namespace zeroshard

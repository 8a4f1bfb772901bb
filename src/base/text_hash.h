#pragma once
#include <cstdint>
#include <string_view>

namespace zeroshard {

// Returns the 64-bit FNV-1a hash of `text`, which is the same in all processes, runs and versions. To hash a text in
// parts, pass the hash of the preceding part as `before`.
constexpr uint64_t hash_text(std::string_view text, uint64_t before = 0xcbf29ce484222325) {
  uint64_t hash = before;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace zeroshard

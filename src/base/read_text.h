#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

inline constexpr int64_t kMostTextBytes = 16 << 20;  // of a file of settings

// All of a file that the user named, links followed. Throws IoError with the path and the reason, and `hint` behind
// them, for what is no regular file, too, or is longer than `most_bytes`.
std::string read_text(const std::string& path, std::string_view hint = "", int64_t most_bytes = kMostTextBytes);

}  // namespace zeroshard

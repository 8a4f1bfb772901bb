#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

inline constexpr int64_t kMostTextBytes = 16 << 20;  // for a file of settings

// The contents of a file that the user named; links are followed. Throws IoError with the path, the reason and then
// `hint`, also for anything but a regular file, and for a file longer than `most_bytes`.
std::string read_text(const std::string& path, std::string_view hint = "", int64_t most_bytes = kMostTextBytes);

}  // namespace zeroshard

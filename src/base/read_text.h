#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace zeroshard {

inline constexpr int64_t kMostTextBytes = 16 << 20;  // limit for a file of settings

// Returns the contents of a file that the user named. Follows symbolic links. Throws IoError if the file cannot be
// read, is not a regular file, or is longer than `most_bytes`. The message has the path, the reason and then `hint`.
std::string read_text(const std::string& path, std::string_view hint = "", int64_t most_bytes = kMostTextBytes);

}  // namespace zeroshard

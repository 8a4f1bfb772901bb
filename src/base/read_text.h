#pragma once
#include <string>
#include <string_view>

namespace zeroshard {

// All of a file that the user named, links followed. Throws IoError with the path, and `hint` behind it.
std::string read_text(const std::string& path, std::string_view hint = "");

}  // namespace zeroshard

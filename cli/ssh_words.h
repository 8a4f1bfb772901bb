#pragma once
#include <string>
#include <vector>

namespace zeroshard::cli {

// The words of --launcher_args, cut as a POSIX shell cuts and unquotes them, without expansions. Throws ValueError
// unless each is an option of ssh, or its value, that leaves the host, the command and the streams of ssh to zeroshard.
std::vector<std::string> ssh_words(const std::string& text);

}  // namespace zeroshard::cli

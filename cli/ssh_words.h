#pragma once
#include <string>
#include <vector>

namespace zeroshard::cli {

// Splits --launcher_args into words and unquotes them as a POSIX shell does, but without expansions. Throws ValueError
// for a quote that does not end.
std::vector<std::string> launcher_words(const std::string& text);

// Does the same for words of ssh. Each word must be an option of ssh or the value of an option. Throws ValueError for
// other words, and for options that would change the host, the command or the streams of ssh (such as -N or -f),
// because zeroshard itself sets these three. Does not examine the values, so `-o HostName=...` passes.
std::vector<std::string> ssh_words(const std::string& text);

}  // namespace zeroshard::cli

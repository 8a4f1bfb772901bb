#pragma once
#include <string>
#include <vector>

namespace zeroshard::cli {

// Splits and unquotes --launcher_args as a POSIX shell does, but without expansions. Throws ValueError for a quote that
// does not end.
std::vector<std::string> launcher_words(const std::string& text);

// As launcher_words(), for ssh. Throws ValueError unless each word
// is an option of ssh, or an option's value, that does not change the host, the command or the streams of ssh, because
// zeroshard sets them.
std::vector<std::string> ssh_words(const std::string& text);

}  // namespace zeroshard::cli

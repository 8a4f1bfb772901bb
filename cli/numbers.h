#pragma once
#include <optional>
#include <string>

// Options are read as text: the messages about wrong numbers are ours. All throw ValueError with the option's name,
// its value and what is expected.
namespace zeroshard::cli {

// At least `min`, which is 0 or 1.
int parse_int(const char* option, const std::optional<std::string>& text, int min, int otherwise);
// At least 0.
double parse_seconds(const char* option, const std::optional<std::string>& text, double otherwise);

}  // namespace zeroshard::cli

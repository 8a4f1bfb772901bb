#pragma once
#include <string>

namespace zeroshard {

// Returns which program replaces "auto" for a key before zeroshard sees the file, and from which of its settings:
// "transformers' Trainer fills it in: learning_rate". Returns "" if no program does.
std::string filler_of(const std::string& path);

}  // namespace zeroshard

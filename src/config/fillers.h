#pragma once
#include <string>

namespace zeroshard {

// Returns which program replaces "auto" for a key before zeroshard sees it, and from which setting: "transformers'
// Trainer fills it in: learning_rate". "" if no program does.
std::string filler_of(const std::string& path);

}  // namespace zeroshard

#pragma once
#include <string>

namespace zeroshard {

// Returns which program replaces the "auto" of the key `path` before zeroshard sees the file, and by which setting of
// that program: "transformers' Trainer fills it in: learning_rate". Returns "" if no program replaces it.
std::string filler_of(const std::string& path);

}  // namespace zeroshard

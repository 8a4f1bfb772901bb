#pragma once
#include <string>

namespace zeroshard {

// Some programs replace the "auto" of some keys before zeroshard sees the file. Returns a text that names the program
// for the key `path`, and the setting whose value it takes, like "transformers' Trainer fills it in: learning_rate".
// Returns "" if no program replaces it.
std::string filler_of(const std::string& path);

}  // namespace zeroshard

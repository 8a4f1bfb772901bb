#pragma once
#include <string>

namespace zeroshard {

// Who gives a key that is "auto" its value before zeroshard sees it, and from what: "transformers' Trainer fills it in:
// learning_rate". "" for a key that none of them knows.
std::string filler_of(const std::string& path);

}  // namespace zeroshard

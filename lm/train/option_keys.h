#pragma once
#include "config/json_text.h"

namespace zeroshard {

// Throws one ConfigError that names every key of the configuration's object "train" that nothing reads, with the
// nearest known key. The code that reads values (options.cpp) checks them, and also checks the values that should be
// objects.
void refuse_unknown_options(const Json& train);

}  // namespace zeroshard

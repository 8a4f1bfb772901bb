#pragma once
#include "config/json_text.h"

namespace zeroshard {

// Throws one ConfigError that names every key of the configuration's object "train" that nothing reads, with the
// nearest known key. Values are checked where they are read (options.cpp), and so is whether they are objects.
void refuse_unknown_options(const Json& train);

}  // namespace zeroshard

#pragma once
#include "config/json_text.h"

namespace zeroshard {

// Throws one ConfigError that names every unknown key of the configuration's object "train", with the nearest known
// key. The function does not check values; options.cpp checks them when it reads them.
void refuse_unknown_options(const Json& train);

}  // namespace zeroshard

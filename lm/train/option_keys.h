#pragma once
#include "config/json_text.h"

namespace zeroshard {

// Throws a ConfigError if the configuration's object "train" has unknown keys. The error names all unknown keys, each
// with the nearest known key. The function does not check values, because parse_train_config() checks them.
void refuse_unknown_options(const Json& train);

}  // namespace zeroshard

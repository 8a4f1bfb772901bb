#pragma once
#include "zeroshard/config.h"

namespace zeroshard {

// fp32 tensors per parameter that an optimizer keeps besides the weights.
int num_moments(OptimizerConfig::Type type, bool momentum);

}  // namespace zeroshard

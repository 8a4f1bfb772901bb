#pragma once
#include "zeroshard/config.h"

namespace zeroshard {

// Returns the number of fp32 tensors that an optimizer keeps for each parameter besides the weights.
int num_moments(OptimizerConfig::Type type, bool momentum);

}  // namespace zeroshard

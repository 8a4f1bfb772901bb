#pragma once
#include "zeroshard/config.h"

namespace zeroshard {

// Returns how many moments an optimizer keeps for each parameter. `momentum` says whether SGD has momentum.
int num_moments(OptimizerConfig::Type type, bool momentum);

}  // namespace zeroshard

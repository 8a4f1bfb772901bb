#pragma once
#include "zeroshard/config.h"

namespace zeroshard {

// Returns how many moments an optimizer keeps for each element, 2 for Muon because its AdamW part needs 2. `momentum`
// says whether SGD has momentum.
int num_moments(OptimizerConfig::Type type, bool momentum);

}  // namespace zeroshard

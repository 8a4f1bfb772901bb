#pragma once
#include "zeroshard/config.h"

namespace zeroshard {

// Returns how many moments an optimizer keeps for each element. For Muon it returns 2, because AdamW, which updates the
// parameters that are not matrices, needs 2. `momentum` says whether SGD has momentum.
int num_moments(OptimizerConfig::Type type, bool momentum);

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <string>

#include "zeroshard/causal_lm.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Returns aligned lines about a run of `steps` steps: model, data, steps, engine, memory of a rank, and the place of
// the results. `validation` may be null.
std::string describe_plan(const TrainConfig& config, const CausalLM& model, Dataset& training, Dataset* validation,
                          int64_t steps, bool on_device);

}  // namespace zeroshard

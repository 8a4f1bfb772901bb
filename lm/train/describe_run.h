#pragma once
#include <cstdint>
#include <string>

#include "zeroshard/causal_lm.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// Returns aligned lines about a run of `steps` steps: the model, the data, the steps, the engine, the memory that a
// rank needs, and the paths of the results and checkpoints. `validation` may be null. `on_device` says that the
// engine's device is not the CPU.
std::string describe_plan(const TrainConfig& config, const CausalLM& model, Dataset& training, Dataset* validation,
                          int64_t steps, bool on_device);

}  // namespace zeroshard

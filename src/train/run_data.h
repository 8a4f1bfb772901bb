#pragma once
#include <cstdint>
#include <memory>

#include "zeroshard/causal_lm.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// The rows that a run trains on, and those that it is evaluated on; null: there are none.
std::unique_ptr<Dataset> training_data(const TrainOptions& options, const CausalLM& model);
std::unique_ptr<Dataset> validation_data(const TrainOptions& options, const CausalLM& model);

// How many steps of `batch_size` rows the run has.
int64_t total_steps(const TrainOptions& options, Dataset& training, int64_t batch_size);

}  // namespace zeroshard

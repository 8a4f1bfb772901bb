#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "zeroshard/causal_lm.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// The rows that a run trains on, and those that it is evaluated on; null: there are none.
std::unique_ptr<Dataset> training_data(const TrainOptions& options, const CausalLM& model);
std::unique_ptr<Dataset> validation_data(const TrainOptions& options, const CausalLM& model);

// How many steps of `batch_size` rows the run has. Throws ValueError when their rows cannot be counted.
int64_t total_steps(const TrainOptions& options, Dataset& training, int64_t batch_size);

// What is missing for a run of `steps` steps to learn and to be evaluated. Throws ValueError when no row has a target,
// or nothing can tell when to end early. Returns a warning where evaluations have nothing to tell; empty: all is there.
std::string check_targets(const TrainOptions& options, int64_t batch_size, int64_t steps, Dataset& training,
                          Dataset* validation);

// How many rows an evaluation has.
int64_t rows_of_evaluation(const TrainOptions& options, Dataset& validation);

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "zeroshard/causal_lm.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// The training rows and the evaluation rows of a run; null: there are none.
std::unique_ptr<Dataset> training_data(const TrainOptions& options, const CausalLM& model);
std::unique_ptr<Dataset> validation_data(const TrainOptions& options, const CausalLM& model);

// How far an earlier run has come, maybe with another batch size.
struct RowsDone {
  int64_t steps = 0, rows = 0;
};

// The number of steps of a run: those that are done, and those of `batch_size` rows that are left. Throws ValueError if
// their rows cannot be counted.
int64_t total_steps(const TrainOptions& options, Dataset& training, int64_t batch_size, const RowsDone& done = {});

// Checks that a run of `steps` steps can learn and be evaluated. Throws ValueError if no row has a target, or if early
// stopping has nothing to decide by. Returns a warning if evaluations would be empty; an empty text if all is well.
std::string check_targets(const TrainOptions& options, int64_t batch_size, int64_t steps, Dataset& training,
                          Dataset* validation);

// The number of rows in an evaluation.
int64_t rows_of_evaluation(const TrainOptions& options, Dataset& validation);

}  // namespace zeroshard

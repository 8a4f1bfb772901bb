#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "zeroshard/causal_lm.h"
#include "zeroshard/data.h"
#include "zeroshard/train.h"

namespace zeroshard {

// training_data() returns the rows for training. validation_data() returns the rows for evaluation, or null if there
// are none.
std::unique_ptr<Dataset> training_data(const TrainOptions& options, const CausalLM& model);
std::unique_ptr<Dataset> validation_data(const TrainOptions& options, const CausalLM& model);

// The progress of the earlier run from which a run continues. The earlier run can have had another batch size.
struct RowsDone {
  int64_t steps = 0, rows = 0;
};

// Returns the number of steps of a run, including done.steps. If train.steps is given, this is train.steps. If
// train.epochs is given, this is done.steps plus the number of steps of `batch_size` rows that the remaining rows need,
// but at least 1. Throws ValueError if the run would have more than 2^53 rows.
int64_t total_steps(const TrainOptions& options, Dataset& training, int64_t batch_size, const RowsDone& done = {});

// Checks that a run of `steps` steps can learn and be evaluated. Throws ValueError if no row that the run trains on has
// a target, if evaluations are wanted but there are no rows for them, or if early stopping has no evaluations or no
// loss to compare. Returns a warning if evaluations would have no targets, else "".
std::string check_targets(const TrainOptions& options, int64_t batch_size, int64_t steps, Dataset& training,
                          Dataset* validation);

// Returns the number of rows in an evaluation.
int64_t rows_of_evaluation(const TrainOptions& options, Dataset& validation);

}  // namespace zeroshard

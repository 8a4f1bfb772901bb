#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard {

class World;

// The results of a run's evaluations.
struct EvaluationState {
  int64_t step = -1;  // step of the last evaluation
  double best = std::numeric_limits<double>::infinity();
  int64_t without_progress = 0;  // number of evaluations in a row without a better loss

  // Returns the state for a checkpoint.
  nlohmann::json to_json() const;
};

// Reads a saved state. Throws nlohmann's error for a value that is no such state. Earlier versions did not write
// "evaluated"; a state without it belongs to step `step`.
EvaluationState evaluation_state_of(const nlohmann::json& saved, int64_t step);

// Note [Evaluations after a save]
// A checkpoint is saved before the evaluation of its step, so that an error or a kill during the evaluation does not
// lose the steps. The result of the evaluation is then written to a file next to the checkpoints. A run that continues
// from the checkpoint reads the file and does not evaluate again.

// Writes the file on rank 0. If that fails, the failure is only logged, because the evaluation can be made again.
void write_evaluation(const std::string& checkpoints, const EvaluationState& state);

// Returns the state from the file if the state belongs to `step`, else `saved`. Collective. A file of another step is
// deleted, because this run will make that step again, or because the file belongs to an earlier run.
EvaluationState read_evaluation(const std::string& checkpoints, int64_t step, const EvaluationState& saved,
                                World& world);

}  // namespace zeroshard

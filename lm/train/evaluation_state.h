#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard {

class World;

// What the evaluations of a run have come to.
struct EvaluationState {
  int64_t step = -1;  // of the last one
  double best = std::numeric_limits<double>::infinity();
  int64_t without_progress = 0;  // evaluations in a row

  // For a checkpoint.
  nlohmann::json to_json() const;
};

// Throws nlohmann's error for something else. Without "evaluated", as earlier versions wrote it: of step `step`.
EvaluationState evaluation_state_of(const nlohmann::json& saved, int64_t step);

// Note [Evaluations after a save]
// A checkpoint is saved before the evaluation of its step, so that an error or a kill in the evaluation does not cost
// the steps. What the evaluation comes to is then written beside the checkpoints, in a file: a run that goes on from
// the checkpoint does not make it again.

// On rank 0. A file that cannot be written is logged: the evaluation would only be made again.
void write_evaluation(const std::string& checkpoints, const EvaluationState& state);

// Collective: the state from the file if it is of `step`, else `saved`. A file of another step is deleted: it is of
// steps that this run makes again, or of an earlier run.
EvaluationState read_evaluation(const std::string& checkpoints, int64_t step, const EvaluationState& saved,
                                World& world);

}  // namespace zeroshard

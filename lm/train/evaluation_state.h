#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard {

class World;

// The results of a run's evaluations.
struct EvaluationState {
  int64_t step = -1;  // step of the last evaluation; -1: none
  double best = std::numeric_limits<double>::infinity();
  int64_t without_progress = 0;  // number of latest evaluations in a row without a better loss

  // Returns the state as JSON for a checkpoint.
  nlohmann::json to_json() const;
};

// Reads a state that to_json() made. Throws nlohmann's error for any other value. Earlier versions of zeroshard did not
// write the field "evaluated". If it is missing, `step` counts as the step of the last evaluation.
EvaluationState evaluation_state_of(const nlohmann::json& saved, int64_t step);

// Note [Evaluations after a save] A checkpoint is saved before the evaluation of its step, so that an error or a kill
// during the evaluation does not lose the steps before it. After the evaluation, rank 0 writes the EvaluationState to a
// file next to the checkpoints. A run that continues from the checkpoint reads the file, and does not repeat the
// evaluation.

// Writes the file of Note [Evaluations after a save]. Only rank 0 calls it. If the write fails, only logs the failure,
// because a later run can repeat the evaluation.
void write_evaluation(const std::string& checkpoints, const EvaluationState& state);

// Returns the state from the file if the state belongs to `step`, else `saved`, on every rank. Collective. Deletes the
// file if it is damaged or belongs to another step. Such a file is useless, because this run will repeat the evaluation
// of that step, or an earlier run wrote the file. If rank 0 cannot read the file, it logs that, and every rank gets
// `saved`.
EvaluationState read_evaluation(const std::string& checkpoints, int64_t step, const EvaluationState& saved,
                                World& world);

}  // namespace zeroshard

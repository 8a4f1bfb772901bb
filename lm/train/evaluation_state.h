#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace zeroshard {

class World;

// The results of a run's evaluations. `best` is the lowest loss so far.
struct EvaluationState {
  int64_t step = -1;  // step of the last evaluation; -1: none
  double best = std::numeric_limits<double>::infinity();
  int64_t without_progress = 0;  // number of evaluations after the last one that improved `best`

  // Returns the state as JSON for a checkpoint.
  nlohmann::json to_json() const;
};

// Reads a state that to_json() made. Throws nlohmann's error for any other value. The field "evaluated" has the step of
// the last evaluation. Earlier versions of zeroshard did not write it. If it is missing, the result has `step` instead.
EvaluationState evaluation_state_of(const nlohmann::json& saved, int64_t step);

// Note [Evaluations after a save] A checkpoint is saved before the evaluation of its step, so that an error or a kill
// during the evaluation does not lose the steps before it. After the evaluation, rank 0 writes the EvaluationState to a
// file next to the checkpoints. A run that continues from the checkpoint reads the file, and does not repeat the
// evaluation.

// Writes the file of Note [Evaluations after a save]. Only rank 0 calls it. If the write fails, only logs the failure,
// because a later run can repeat the evaluation.
void write_evaluation(const std::string& checkpoints, const EvaluationState& state);

// Returns the state from the file of Note [Evaluations after a save] if the state belongs to `step`, else `saved`, on
// every rank. Collective. `saved` is the state in the checkpoint of `step`. Deletes the file if it is damaged or
// belongs to another step. A file of an earlier step is useless, because `saved` has the results up to the checkpoint.
// A file of a later step is useless, because this run computes that step again. If rank 0 cannot read the file, it logs
// that, and every rank gets `saved`.
EvaluationState read_evaluation(const std::string& checkpoints, int64_t step, const EvaluationState& saved,
                                World& world);

}  // namespace zeroshard

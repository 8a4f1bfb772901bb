#pragma once
#include <memory>
#include <optional>

#include "zeroshard/causal_lm.h"
#include "zeroshard/lora.h"
#include "zeroshard/train.h"

namespace zeroshard {

// The model of a run, without memory yet.
struct MadeModel {
  std::shared_ptr<CausalLM> model;
  std::optional<LoraOptions> lora;  // the run's options with all target modules spelled out
};
// Makes the model of a run. Throws ValueError if rows are too long for the model, if no parameter is left to train, or
// if the ranks of a sequence group cannot share the rows or the model's heads. Throws ValueError or IoError for a wrong
// model directory.
MadeModel make_model(const TrainConfig& config);

// Returns the values with which the model's parameters start: those in the model's files, or initial values.
ParameterValues values_of(const TrainOptions& options, CausalLM& model);

// Writes the model, or only its adapters, from the newest checkpoint to the output directory.
void write_result(const TrainOptions& options, const MadeModel& made);

}  // namespace zeroshard

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
  std::optional<LoraOptions> lora;  // options of the run, spelled out
};
// Makes the model of a run. Throws ValueError or IoError. The reasons include rows that are too long for the model, a
// model in which nothing is left to train, and ranks of a sequence group that cannot share the rows or the model's
// heads.
MadeModel make_model(const TrainConfig& config);

// Returns the values of the model's parameters: from the model's files, or initial values.
ParameterValues values_of(const TrainOptions& options, CausalLM& model);

// Writes the output directory from the newest checkpoint: the model, or its adapters.
void write_result(const TrainOptions& options, const MadeModel& made);

}  // namespace zeroshard

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
// Throws ValueError or IoError. Also throws if the rows are too long for the model, if nothing is left to train, or if
// the ranks of a sequence group cannot share the rows or the model's heads.
MadeModel make_model(const TrainConfig& config);

// Returns the values in the model's files, or initial values.
ParameterValues values_of(const TrainOptions& options, CausalLM& model);

// Writes the output directory from the newest checkpoint: the model, or its adapters.
void write_result(const TrainOptions& options, const MadeModel& made);

}  // namespace zeroshard

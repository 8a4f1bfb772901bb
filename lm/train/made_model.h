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
  std::optional<LoraOptions> lora;  // the run's options, spelled out
};
// Throws ValueError or IoError, also if the rows are too long for the model, nothing is left to train, or the ranks of
// a sequence group cannot share the rows or the model's heads.
MadeModel make_model(const TrainConfig& config);

// From the model's files, or initial ones.
ParameterValues values_of(const TrainOptions& options, CausalLM& model);

// Writes the output directory from the newest checkpoint: the model, or its adapters.
void write_result(const TrainOptions& options, const MadeModel& made);

}  // namespace zeroshard

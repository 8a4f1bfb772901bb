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
  std::optional<LoraOptions> lora;  // of the run, spelled out
};
// Throws ValueError or IoError, also when the rows are too long for the model, or nothing is left to train.
MadeModel make_model(const TrainOptions& options);

// Of the model's files, or drawn.
ParameterValues values_of(const TrainOptions& options, CausalLM& model);

// Writes the output directory from the newest checkpoint: the model, or its adapters.
void write_result(const TrainOptions& options, const MadeModel& made);

}  // namespace zeroshard

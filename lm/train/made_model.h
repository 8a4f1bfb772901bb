#pragma once
#include <memory>
#include <optional>

#include "zeroshard/causal_lm.h"
#include "zeroshard/lora.h"
#include "zeroshard/train.h"

namespace zeroshard {

// The model of a run, whose parameters have no memory yet.
struct MadeModel {
  std::shared_ptr<CausalLM> model;
  std::optional<LoraOptions> lora;  // the run's options with all target modules spelled out
};
// Makes the model of a run, freezes parameters and adds adapters as the options say. Throws ValueError if rows are too
// long for the model, if train.freeze names no parameter or leaves none to train, or if train.lora does not fit the
// model. With sequence_parallel_size, also throws ValueError if the length of rows or the number of heads cannot be
// divided by it, or if the model has dropout in attention. Throws ValueError or IoError for a wrong model directory.
MadeModel make_model(const TrainConfig& config);

// Returns the values with which the model's parameters start. They are initial values, or the values in the model's
// files. Adapters start with the values in the adapter's files, or else with initial values. Throws ValueError or
// IoError if files lack a parameter or have another shape for it.
ParameterValues values_of(const TrainOptions& options, CausalLM& model);

// Writes the model of the newest checkpoint to the output directory. If the model has adapters, writes only the
// adapters, or with train.lora.merge the model into which they are merged.
void write_result(const TrainOptions& options, const MadeModel& made);

}  // namespace zeroshard

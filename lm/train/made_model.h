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
// long for the model, if an entry of train.freeze matches no parameter, if no parameter is left to train, or if
// train.lora does not fit the model. If sequence_parallel_size is above 1, also throws ValueError if it does not divide
// the length of rows and the numbers of heads, or if the model has dropout in attention. Throws ValueError or IoError
// for a wrong model directory.
MadeModel make_model(const TrainConfig& config);

// Returns the values with which the model's parameters start: the values in the model's files, or initial values with
// train.from_scratch. Adapters start with the values in the files of train.lora.adapter, or with initial values if that
// option is not given. `model` must outlive the result. Throws ValueError or IoError if files lack a parameter or have
// another shape for it.
ParameterValues values_of(const TrainOptions& options, CausalLM& model);

// Writes the model of the newest checkpoint to the output directory. If the model has adapters, writes only these. With
// train.lora.merge, writes the whole model instead, with the adapters merged into its weights.
void write_result(const TrainOptions& options, const MadeModel& made);

}  // namespace zeroshard

#pragma once
#include "zeroshard/causal_lm.h"
#include "zeroshard/checkpoint_files.h"

// Functions that make options for export_weights(), for a checkpoint of a model with adapters. The options do not read
// the model's parameters.
namespace zeroshard {

// Exports only the adapters, as PEFT's adapter_model.safetensors.
ExportOptions adapters_alone(const CausalLM& model);

// Exports the equivalent model without adapters: W + scale * B A instead of each W that has an adapter. The export
// needs memory for A and B of one module, in addition to the piece that it writes.
ExportOptions merged_weights(const CausalLM& model);

}  // namespace zeroshard

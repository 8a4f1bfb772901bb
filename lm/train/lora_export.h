#pragma once
#include "zeroshard/causal_lm.h"
#include "zeroshard/checkpoint_files.h"

// Makes options for export_weights() of a checkpoint of a model with adapters. They do not read the model's parameters.
namespace zeroshard {

// Exports only the adapters, as PEFT's adapter_model.safetensors.
ExportOptions adapters_alone(const CausalLM& model);

// Exports the equivalent model without adapters: W + scale * B A instead of each W that has an adapter. Besides the
// piece being written, it needs memory for A and B of one module.
ExportOptions merged_weights(const CausalLM& model);

}  // namespace zeroshard

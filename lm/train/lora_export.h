#pragma once
#include "zeroshard/causal_lm.h"
#include "zeroshard/checkpoint_files.h"

// What export_weights() makes of a checkpoint of a model with adapters. The model's parameters are not read.
namespace zeroshard {

// The adapters alone, as PEFT's adapter_model.safetensors.
ExportOptions adapters_alone(const CausalLM& model);

// The model that computes the same without adapters: W + scale * B A in the place of each W that has one. Beside the
// piece being written it needs memory for A and B of one module.
ExportOptions merged_weights(const CausalLM& model);

}  // namespace zeroshard

#pragma once
#include "zeroshard/causal_lm.h"
#include "zeroshard/checkpoint_files.h"

// These functions make options with which export_weights() exports a checkpoint of a model with adapters. They read the
// names and shapes of the model's parameters, but not the values.
namespace zeroshard {

// Returns options that export only the adapters, as PEFT's adapter_model.safetensors.
ExportOptions adapters_alone(const CausalLM& model);

// Returns options that export the equivalent model without adapters. Instead of each weight W with an adapter, that
// model has W + scale * B A. The export needs memory for A and B of one module, and for those rows of B A that it
// writes at a time.
ExportOptions merged_weights(const CausalLM& model);

}  // namespace zeroshard

#pragma once
#include <string>

#include "zeroshard/checkpoint_files.h"

namespace zeroshard {

struct ModelExport {
  std::string model;        // the directory that the model came from
  std::string checkpoints;  // the newest one in it has the weights
  std::string output;
  std::string dtype = "F32";  // F32, BF16 or F16
};

// Throws ValueError when a run would overwrite another model than its own: the one it starts from, or one that lies in
// `output` without checkpoints. Throws IoError when a file that is copied at the end cannot be read.
void check_output(const std::string& model, const std::string& output, const std::string& checkpoints);

// Writes a Hugging Face directory: the weights (as `weights` says, but in what.dtype) as safetensors, config.json with
// their dtype, and what else `model` has for transformers, such as its tokenizer; a generation config, if need be from
// config.json. Each file gets its name when it is whole, config.json last. Throws IoError or ValueError; files that
// were there before are whole then.
void write_model_directory(const ModelExport& what, ExportOptions weights = {});

// The same with adapters in PEFT's format in the place of a model: `weights` says which tensors, `config` is the text
// of adapter_config.json, which is written last.
void write_adapter_directory(const ModelExport& what, ExportOptions weights, const std::string& config);

}  // namespace zeroshard

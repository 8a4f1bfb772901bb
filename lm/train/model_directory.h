#pragma once
#include <string>

#include "zeroshard/checkpoint_files.h"

namespace zeroshard {

struct ModelExport {
  std::string model;        // the directory that the model came from
  std::string checkpoints;  // directory whose newest checkpoint has the weights
  std::string output;
  std::string dtype = "F32";  // F32, BF16 or F16
};

// Checks the output directory of a run. Throws ValueError if the run would overwrite a model that is not its own: the
// model from which it starts, or a model in `output` without checkpoints. Throws IoError if a file that the run copies
// at its end cannot be read.
void check_output(const std::string& model, const std::string& output, const std::string& checkpoints);

// Returns the links that lead out of `model` as "NAME (TARGET), ..."; empty if there are none. Only files other than
// the weights count, because their contents would be copied to `output`. Links into the blobs/ of a Hugging Face cache
// do not count.
std::string links_out_of(const std::string& model);

// Writes a Hugging Face directory: the tensors that `weights` chooses as safetensors, in `what.dtype`; config.json with
// that dtype; the other files of `what.model` for transformers, such as its tokenizer; and a generation config, made
// from config.json if the model has none. Each file is renamed into place when it is complete, config.json last, so an
// error (IoError or ValueError) leaves no half-written file under its final name.
void write_model_directory(const ModelExport& what, ExportOptions weights = {});

// Writes a directory with adapters in PEFT's format instead of a model, in the same way. `weights` chooses the tensors.
// `config` is the text of adapter_config.json, which is written last.
void write_adapter_directory(const ModelExport& what, ExportOptions weights, const std::string& config);

}  // namespace zeroshard

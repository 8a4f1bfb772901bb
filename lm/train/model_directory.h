#pragma once
#include <string>

#include "zeroshard/checkpoint_files.h"

namespace zeroshard {

struct ModelExport {
  std::string model;        // the directory that the model came from
  std::string checkpoints;  // the directory whose newest checkpoint has the weights
  std::string output;
  std::string dtype = "F32";  // F32, BF16 or F16
};

// Checks the output directory of a run. Throws ValueError if `output` is the directory `model`, because the run would
// overwrite the model from which it starts. Also throws ValueError if `output` has files of a model and `checkpoints`
// has no checkpoint, because these files cannot be of this run. Throws IoError if a file that the run copies at its end
// cannot be read.
void check_output(const std::string& model, const std::string& output, const std::string& checkpoints);

// Returns the symbolic links that lead out of the directory `model` as "NAME (TARGET), ...", or "" if there are none.
// Considers only files that a run copies to its output. Leaves out links into the blobs/ of a Hugging Face cache.
std::string links_out_of(const std::string& model);

// Writes a Hugging Face directory. The directory contains the tensors that `weights` chooses, as safetensors in
// `what.dtype`. It also contains config.json with that dtype, and the other files of `what.model` for transformers,
// such as the tokenizer. If the model has no generation config, the function makes one from config.json. Renames each
// file to its final name when the file is complete, and config.json last. So an error (IoError or ValueError) leaves no
// half-written file under its final name.
void write_model_directory(const ModelExport& what, ExportOptions weights = {});

// Does the same for a directory with adapters in PEFT's format instead of a model, but makes no generation config.
// `weights` chooses the tensors. `config` is the text of adapter_config.json, which is written last instead of
// config.json.
void write_adapter_directory(const ModelExport& what, ExportOptions weights, const std::string& config);

}  // namespace zeroshard

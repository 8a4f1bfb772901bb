#pragma once
#include <atomic>
#include <string>

#include "zeroshard/train.h"

namespace zeroshard {

// Returns whether the ending of a file's name says that the file is text: .txt, .jsonl, .ndjson, .json or .parquet.
bool is_text(const std::string& path);

// Makes a token file of each text file in `options` with the tokenizer of the model's directory. Replaces the path of
// the text in `options` by that of the token file. The token files stay in output/tokens. A later run uses a token file
// again if the text, the tokenizer and the options of tokenizing are the same. Throws the errors of tokenize_files()
// and load_tokenizer().
void tokenize_texts(TrainOptions& options);
// Does the same on all ranks. Collective. Rank 0 makes its files first. Another rank uses these files if it sees them,
// else it makes its own. Returns true, or false on all ranks if `stop` has become true on any of them. Keeps a pointer
// to `stop` in `options`.
bool tokenize_texts(TrainOptions& options, World& world, const std::atomic<bool>& stop);

}  // namespace zeroshard

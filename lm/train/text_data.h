#pragma once
#include <atomic>
#include <string>

#include "zeroshard/train.h"

namespace zeroshard {

// Returns whether a file's name marks it as text: .txt, .jsonl, .ndjson or .json.
bool is_text(const std::string& path);

// Replaces the text files in `options` by token files, which it makes with the tokenizer of the model's directory. The
// token files stay in output/tokens for the next run.
void tokenize_texts(TrainOptions& options);
// Does the same for all ranks together: rank 0 makes the files. Collective. Returns false on all ranks if `stop` became
// true on one.
bool tokenize_texts(TrainOptions& options, World& world, const std::atomic<bool>& stop);

}  // namespace zeroshard

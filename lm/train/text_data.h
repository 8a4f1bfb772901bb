#pragma once
#include <atomic>
#include <string>

#include "zeroshard/train.h"

namespace zeroshard {

// Whether a file's name says that it is text: .txt, .jsonl, .ndjson or .json.
bool is_text(const std::string& path);

// Puts files of tokens in the place of the text files in `options`, made with the tokenizer of the model's directory
// and kept in output/tokens for the next run.
void tokenize_texts(TrainOptions& options);
// The same, collective: rank 0 makes them. Returns false, on all ranks, when `stop` came true on one.
bool tokenize_texts(TrainOptions& options, World& world, const std::atomic<bool>& stop);

}  // namespace zeroshard

#pragma once
#include <cstdint>
#include <vector>

#include "tokenizer/json_field.h"

namespace zeroshard {

// The ids that tokenizer.json's post-processor puts around a sequence.
struct SpecialIds {
  std::vector<int32_t> before, after;
};

// Reads the post-processor of tokenizer.json. Throws ValueError if it is not supported, and for ids outside the
// vocabulary.
SpecialIds read_post_processor(const JsonField& field, int64_t vocab_size);

}  // namespace zeroshard

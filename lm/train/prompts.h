#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "zeroshard/causal_lm.h"
#include "zeroshard/tokenizer.h"
#include "zeroshard/train.h"

namespace zeroshard {

// The texts of train.samples.prompts as tokens.
struct Prompts {
  std::unique_ptr<Tokenizer> tokenizer;  // null if there are no prompts
  std::vector<std::vector<int32_t>> ids;
};

// Encodes the prompts. Throws IoError or ValueError if there are prompts and the model's directory has no tokenizer.
// Throws a ValueError that names the prompt if a prompt has no tokens, or if it has a token that the model does not
// have.
Prompts encode_prompts(const TrainOptions& options, const CausalLM& model);

}  // namespace zeroshard
